"""The source of MariaDB and MySQL: a binlog as transactions of row changes, and selected rows as canonical images."""
