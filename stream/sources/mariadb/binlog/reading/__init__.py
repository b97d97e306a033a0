"""What the binlog reader makes of the events of a transaction: rows, voids and descriptions."""
