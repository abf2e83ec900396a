"""`ringmq cluster`: node processes on this machine, and the state of any cluster."""
