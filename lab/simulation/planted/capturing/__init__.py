"""Planted bugs in what captures changes by way of connectors."""
