"""Recorded histories of reads and commits as clients saw them, judged offline (docs/internals/faults.md)."""
