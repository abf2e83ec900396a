"""Reading queues by positions: see `reader`."""
