"""Reading the binlog of one of several servers that log the same."""
