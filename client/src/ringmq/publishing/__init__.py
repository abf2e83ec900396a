"""Publishing to one queue: a pure core, and the shell that gives it a stream."""
