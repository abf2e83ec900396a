"""Consuming from queues, whose masters are here or on other nodes."""
