"""What is in the binlogs of MySQL only, and how they are asked for."""
