"""Motifs of the world of rows: short sequences of ops that chance finds too seldom."""
