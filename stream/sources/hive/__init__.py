"""The Hive source: a metastore's notification log into source transactions. Offline here: captured logs only."""
