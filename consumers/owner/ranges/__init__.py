"""Ranges of keys: the rows of a table whose keys begin with given values, as an owner answers for them."""
