"""Structure-aware fuzzing of every parser: see docs/internals/fuzzing.md."""
