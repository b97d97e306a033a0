"""The MariaDB source: its binlog into transactions of canonical row changes, its rows into canonical images."""
