"""Latency samples and their percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable

PERCENTILES = (50, 95, 99)


class Latencies:
    """Each sample is a duration and the number of messages that had it.

    Percentiles are by nearest rank over messages, not over samples.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def add(self, seconds: float, messages: int) -> None:
        self._samples.append((seconds, messages))

    @classmethod
    def merged(cls, parts: Iterable[Latencies]) -> Latencies:
        """The samples of all `parts`."""
        whole = cls()
        for part in parts:
            whole._samples += part._samples
        return whole

    def summary_ms(self) -> dict[str, float] | None:
        """{"p50", "p95", "p99", "max"} in milliseconds; None without a sample."""
        if not self._samples:
            return None
        ordered = sorted(self._samples)
        total = sum(messages for _, messages in ordered)
        ranks = [math.ceil(total * percent / 100) for percent in PERCENTILES]
        found: list[float] = []
        passed = 0
        for seconds, messages in ordered:
            passed += messages
            while len(found) < len(ranks) and ranks[len(found)] <= passed:
                found.append(seconds)
        named = dict(zip((f"p{percent}" for percent in PERCENTILES), found, strict=True))
        named["max"] = ordered[-1][0]
        return {name: round(seconds * 1000, 3) for name, seconds in named.items()}
