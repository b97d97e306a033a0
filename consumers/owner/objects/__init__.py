"""How an owner answers for catalog objects other than tables."""
