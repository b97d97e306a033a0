"""Fault injection on real servers: a network of proxies, a seeded schedule of faults, and the verdict after quiet."""
