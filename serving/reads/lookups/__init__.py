"""Rows that are looked up one by one: what is wanted of each, and what sources say where owners prove nothing."""
