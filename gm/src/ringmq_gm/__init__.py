"""Guaranteed multicast around a ring."""
