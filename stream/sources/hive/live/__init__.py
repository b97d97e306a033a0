"""The live Hive source: what talks to a metastore. Translation is beside it, and pure."""
