"""What a hostile or unlucky world sends, against running processes and real servers: docs/bad-input.md."""
