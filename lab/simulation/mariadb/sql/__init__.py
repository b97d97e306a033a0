"""The part of SQL that the product, its client and the simulator's applications send."""
