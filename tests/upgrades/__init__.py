"""This version beside the next one, in every order of upgrade."""
