"""What ends a node, and is nobody's bug."""

from __future__ import annotations


class StartError(Exception):
    """A node can't start, or go on; the message says why, in one line."""
