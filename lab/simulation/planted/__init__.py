"""Planted bugs: small changes of the real code, each of which some world of the simulator must catch."""
