"""A metastore's notification log, and what the offline replay makes of it."""
