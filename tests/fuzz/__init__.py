"""Structure-aware fuzzing of every parser: see docs/fuzzing.md."""
