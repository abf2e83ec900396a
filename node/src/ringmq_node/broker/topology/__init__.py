"""Exchanges, bindings and vhosts: their records, mirrored here and compiled for routing."""
