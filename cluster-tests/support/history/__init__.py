"""What clients saw of a cluster, as lines of JSON, and the judgement of it."""
