"""Each door translates between one protocol and the broker, and holds no rule."""
