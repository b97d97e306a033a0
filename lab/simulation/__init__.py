"""The deterministic simulator: the real pure code run through seeded histories, judged by a plain list of the truth."""
