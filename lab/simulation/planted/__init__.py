"""Planted bugs: small changes of the real code. A world of the simulator must catch each one."""
