"""What the benchmark can run: ours, and what it is measured against."""
