"""`ringmq publish` and `ringmq consume`: messages from and to lines of text."""
