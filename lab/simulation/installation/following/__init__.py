"""Readers of the change stream in the installation: what they do, and the copies that they keep."""
