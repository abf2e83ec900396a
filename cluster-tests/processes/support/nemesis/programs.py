"""Clients on hosts of their own: `nemesis.inside` as a process in a network namespace."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from node_starter import CLIENT, Starter, starter_of

from nemesis.network import Network

PIECE_BYTES = 1 << 16
STDERR = 2


def client_starter() -> Starter:
    """Of all `Program`s of this process. Its imports begin with the first call."""
    return starter_of("client", CLIENT)


class Program:
    """One `nemesis.inside` on a host."""

    def __init__(self, network: Network, host: str, *arguments: str) -> None:
        source, self._to_it = os.pipe()
        self._from_it, out = os.pipe()
        self._code: int | None = None
        self._process = client_starter().start(
            arguments, out, errors=STDERR, source=source, namespace=network.namespace(host)
        )
        os.close(source)
        os.close(out)

    def ready(self) -> None:
        """Returns once a program that publishes has started."""
        self._said(b"ready\n")

    def begin(self) -> None:
        """A publisher that is ready opens its stream, and publishes."""
        os.write(self._to_it, b"\n")

    def enough(self) -> None:
        """A publisher that has begun ends once what it has on its way is confirmed or given up."""
        self.begin()

    def opened(self) -> None:
        """Returns once the program's stream is open."""
        self._said(b"open\n")

    def _said(self, line: bytes) -> None:
        # Not a byte more: the rest is the result.
        said = b""
        while not said.endswith(b"\n") and (byte := os.read(self._from_it, 1)):
            said += byte
        assert said == line

    def result(self, within_s: float) -> Any:
        try:
            out = self._rest(time.monotonic() + within_s)
            code = self._process.wait(10)
        finally:
            self.end()
        assert code == 0, "the client's program has failed"
        return json.loads(out.splitlines()[-1])

    def _rest(self, deadline: float) -> bytes:
        """What the program says until it ends."""
        pieces = []
        while select.select([self._from_it], [], [], max(0.0, deadline - time.monotonic()))[0]:
            pieces.append(os.read(self._from_it, PIECE_BYTES))
            if not pieces[-1]:
                return b"".join(pieces)
        raise subprocess.TimeoutExpired("nemesis.inside", deadline)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        for end in (self._to_it, self._from_it):
            if end >= 0:
                os.close(end)
        self._to_it = self._from_it = -1


def both_begun(publisher: Program, consumer: Program) -> None:
    """Returns once the publisher publishes, and the consumer is served."""
    publisher.ready()
    consumer.opened()
    publisher.begin()
    publisher.opened()


def longest_gap_s(moments: Sequence[float], after: float) -> float:
    """The longest time between two of these moments that has ended later than `after`."""
    return max(end - begin for begin, end in pairwise(sorted(moments)) if end > after)
