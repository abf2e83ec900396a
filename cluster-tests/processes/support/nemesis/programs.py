"""Clients on hosts of their own: `nemesis.inside` as a process in a network namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from children import child_environment

from nemesis.network import Network


class Program:
    """One `nemesis.inside` on a host."""

    def __init__(self, network: Network, host: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*network.inside(host), sys.executable, "-m", "nemesis.inside", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )

    def ready(self) -> None:
        """Returns once a program that publishes has started."""
        self._said(b"ready\n")

    def begin(self) -> None:
        """A publisher that is ready opens its stream, and publishes."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def opened(self) -> None:
        """Returns once the program's stream is open."""
        self._said(b"open\n")

    def _said(self, line: bytes) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == line

    def result(self, within_s: float) -> Any:
        try:
            out, _ = self._process.communicate(timeout=within_s)
        finally:
            self.end()
        assert self._process.returncode == 0, "the client's program has failed"
        return json.loads(out.splitlines()[-1])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


def both_begun(publisher: Program, consumer: Program) -> None:
    """Returns once the publisher publishes, and the consumer is served."""
    publisher.ready()
    consumer.opened()
    publisher.begin()
    publisher.opened()


def longest_gap_s(moments: Sequence[float], after: float) -> float:
    """The longest time between two of these moments that has ended later than `after`."""
    return max(end - begin for begin, end in pairwise(sorted(moments)) if end > after)
