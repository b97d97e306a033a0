"""The cluster under faults: its schedule, its judge, and short runs of it."""
