"""An installation of the product, whole: its processes run on simulated servers, and every answer is judged."""
