"""A queue as pure state: positions, blocks, ops, what is ready and what is unacknowledged."""
