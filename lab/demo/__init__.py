"""The demo: the whole system on one machine, real servers, real traffic, every answer judged."""
