"""`ringmq queue` and `ringmq promote`."""
