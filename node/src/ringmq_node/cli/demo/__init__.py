"""`ringmq demo`: a cluster, a load, the master killed, and the lost messages counted."""
