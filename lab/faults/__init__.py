"""Fault injection on real servers: proxies as the network, a seeded schedule of faults, and a verdict at the end."""
