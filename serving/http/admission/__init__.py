"""What one caller may take of a front, so that others are answered: rate, requests at a time, connections."""
