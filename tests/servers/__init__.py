"""Real servers for tests: given by environment, else in Docker, else as local processes."""
