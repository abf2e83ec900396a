"""Whole queues in simulated rings: the shipped replicas, with producers and consumers."""
