"""The simulated server's binary log, in MariaDB's format."""
