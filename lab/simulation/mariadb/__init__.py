"""A MariaDB server in memory: its protocol, its SQL as far as Freshet sends it, its engine and its binlog."""
