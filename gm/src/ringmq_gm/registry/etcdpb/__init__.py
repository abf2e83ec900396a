"""Generated from `proto/` by `make proto`."""
