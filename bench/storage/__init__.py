"""The storage engine alone: no network, no ring, one process for each measurement.

`python -m bench storage` from the root of the repository, or `make bench-storage`. How
to read the figures is in `bench/README.md`.
"""
