"""README's walk, as a newcomer takes it: `python -m lab.walk` prints what docs/start/recording.md shows."""
