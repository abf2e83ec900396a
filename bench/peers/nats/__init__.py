"""NATS JetStream beside ours: the servers, and a lean publisher."""
