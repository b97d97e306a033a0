"""What operators do in the installation beside looking at it: snapshots, followers, locations."""
