"""What ends a node before it serves."""

from __future__ import annotations


class StartError(Exception):
    """A node can't start; the message says why, in one line."""
