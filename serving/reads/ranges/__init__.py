"""Reads of ranges of rows, from the owners of all partitions or from the source."""
