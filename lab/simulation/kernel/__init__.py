"""Virtual threads, time and network, on which the product's own processes run."""
