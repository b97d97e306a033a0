"""The world of catalog tables: transactions, write ids, names, and readers that bring write-id lists."""
