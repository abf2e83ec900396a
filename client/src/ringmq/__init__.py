"""RingMQ."""
