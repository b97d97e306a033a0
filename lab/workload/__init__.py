"""The workload source: a catalog whose truth is MariaDB tables, with a log written in the same transactions."""
