"""How the disk is touched: its calls, the threads that wait for them, the data directory."""
