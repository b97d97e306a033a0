"""The world of rows: MariaDB-like sources, publishers, a topic, owners, fronts and sessions."""
