"""One replica of a queue: the ring's member, the store and the queue, joined."""
