"""Bad input against running processes and real servers: docs/operating/bad-input.md."""
