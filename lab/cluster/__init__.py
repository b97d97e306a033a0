"""Several nodes as processes over real servers, under faults, drains and additions; what clients saw is judged."""
