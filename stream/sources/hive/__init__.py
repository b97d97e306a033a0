"""The Hive source: a metastore's notification log → source transactions. Pure; what talks to a server is in `live`."""
