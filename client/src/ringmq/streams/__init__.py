"""A stream that is opened again when it breaks: the shell that publisher and consumer share."""
