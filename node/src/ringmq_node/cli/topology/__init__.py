"""`ringmq exchange`, `ringmq binding` and `ringmq vhost`."""
