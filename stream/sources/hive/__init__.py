"""The Hive source: a metastore's notification log → source transactions. Pure, but for `live` and `rpc`."""
