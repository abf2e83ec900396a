"""Chance as an argument, so that a seed is all that a run depends on."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """The one method of `random.Random` that the cores use: jitter of their time-outs."""

    def random(self) -> float:
        """A number from 0 up to, but not including, 1."""
        ...
