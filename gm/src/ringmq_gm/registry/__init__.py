"""One small linearizable store in which nodes agree on views; two engines are behind it."""
