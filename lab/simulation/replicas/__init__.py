"""Servers of every kind of log, and what their positions, tokens and write-id lists say of each other."""
