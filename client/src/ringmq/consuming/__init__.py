"""Consuming from one queue: batches in, acks out as ranges."""
