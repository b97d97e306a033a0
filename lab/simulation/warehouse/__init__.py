"""A metastore with partitions, databases and functions; the product's processes follow it and answer for it."""
