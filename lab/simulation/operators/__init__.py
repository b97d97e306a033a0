"""What operators look at: the ports of processes, and the routes of fronts, judged by what is true."""
