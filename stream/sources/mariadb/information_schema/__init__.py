"""What a server tells of its tables, and which of them it can't tell now."""
