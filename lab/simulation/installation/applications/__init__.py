"""What applications do with the cache beside reading it: they keep rows of their own, and give rows."""
