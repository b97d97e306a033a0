"""The deterministic simulator: runs the real pure code through seeded histories and checks every answer."""
