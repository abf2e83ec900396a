"""`ringmq policy`."""
