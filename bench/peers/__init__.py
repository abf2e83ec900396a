"""The clusters that the benchmark can run: ours, its rivals, and two footings."""
