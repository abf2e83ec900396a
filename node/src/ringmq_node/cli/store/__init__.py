"""`ringmq store`: the data directory of a node that is not running."""
