"""What the simulated server keeps: tables, their columns, and the versions of their rows."""
