"""The workload source: a catalog kept in MariaDB tables, with a log written in the same transactions."""
