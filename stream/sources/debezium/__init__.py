"""The source of a MariaDB or MySQL shard that reads what a Debezium connector has written, in place of the binlog.

`stream.sources.postgres` is what PostgreSQL needs besides.
"""
