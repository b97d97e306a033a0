"""Planted bugs in what answers readers."""
