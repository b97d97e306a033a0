"""Measurements of the whole path on this machine. ``python -m benchmarks`` runs them all (benchmarks/README.md)."""
