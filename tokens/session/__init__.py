"""The text of a session token: which formats there are, and how the newest one is packed."""
