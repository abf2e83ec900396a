"""`ringmq set-aside`: messages of logs that had to be cut."""
