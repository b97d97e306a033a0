"""The command line, its settings, and real servers on this machine."""

DISTRIBUTION = "freshet-cache"
"""What package metadata knows us by; `freshet` is another's on the public index."""
