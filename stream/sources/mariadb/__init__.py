"""The MariaDB source: turns a binlog into transactions of row changes, and selected rows into canonical images."""
