"""The streams between nodes: dialled, answered, watched. `link` tells how they work together."""
