"""The demo: the whole system on one machine, with real servers and real traffic. Every answer is judged."""
