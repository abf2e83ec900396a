"""`ringmq bench`: rates and latencies of a running cluster, and whether a message got lost."""
