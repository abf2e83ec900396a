"""Whole rings in virtual time, from a seed. `world` is the entrance; `runs` runs many seeds."""
