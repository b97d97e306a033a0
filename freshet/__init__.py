"""The command line, its settings, and real servers on this machine."""

DISTRIBUTION = "freshet-cache"
"""The name of the distribution. `freshet` is taken by another project on the public index."""
