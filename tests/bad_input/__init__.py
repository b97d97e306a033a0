"""What a hostile or unlucky world sends, against running processes and real servers: docs/operating/bad-input.md."""
