"""The Hive source: translates a metastore's captured notification log into source transactions, offline only."""
