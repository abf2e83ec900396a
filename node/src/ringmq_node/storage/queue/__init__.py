"""One queue on the disk: its journal, its segments, and the index of its bodies."""
