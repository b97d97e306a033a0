"""Mutations of the real code: small mistakes, one at a time, that a fast test or the simulator must notice."""
