"""The change stream over HTTP: its parameters, its route, and responses that have no end."""
