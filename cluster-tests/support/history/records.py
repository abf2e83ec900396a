"""What clients saw, as records: one line of JSON each, in the order of time.

    {"kind": "confirm", "at": 12.5, "queue": "q", "tag": "p1", "first": 20, "last": 29}

A message is named by the *tag* of its publisher and its *number* there, from 0 on. `at` is in
seconds, by a clock that never goes back and that all writers of one history share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self


@dataclass(frozen=True, slots=True)
class Publish:
    """Messages have been handed over to a publisher; whether the cluster gets them is open."""

    at: float
    queue: str
    tag: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """They are confirmed; `epoch` and `master` as their stream was opened, if that is known."""

    at: float
    queue: str
    tag: str
    first: int
    last: int
    epoch: int = 0
    master: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The publisher has given them up, for `reason`: they may be in the queue or not."""

    at: float
    queue: str
    tag: str
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """Messages `number` and on at `position` and on."""

    position: int
    tag: str
    number: int
    count: int
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Deliver:
    """A consumer got messages on its stream number `stream`."""

    at: float
    queue: str
    consumer: str
    stream: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Garbled:
    """A consumer got a body that nobody has published."""

    at: float
    queue: str
    consumer: str
    position: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The cluster has reported the acks of these positions as safe."""

    at: float
    queue: str
    consumer: str
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """A node has told of a ring: its members, the master first, and which are synchronised."""

    at: float
    queue: str
    epoch: int
    ring: tuple[str, ...]
    synchronised: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class Drained:
    """All that was left in the queue has been delivered and acked before."""

    at: float
    queue: str


@dataclass(frozen=True, slots=True)
class Nemesis:
    """A fault has begun, or is over. `name` is its kind; `fault` is all of it, to be read."""

    at: float
    begins: bool
    round: int
    name: str
    nodes: tuple[str, ...]
    fault: str


@dataclass(frozen=True, slots=True)
class Whole:
    """After a round's faults every queue has all its replicas, synchronised, and confirms again."""

    at: float
    round: int


Record = Publish | Confirm | Unknown | Deliver | Garbled | Ack | View | Drained | Nemesis | Whole

KINDS: dict[str, type[Record]] = {
    each.__name__.lower(): each
    for each in (Publish, Confirm, Unknown, Deliver, Garbled, Ack, View, Drained, Nemesis, Whole)
}


def to_line(record: Record) -> str:
    return json.dumps({"kind": type(record).__name__.lower(), **asdict(record)})


def from_line(line: str) -> Record:
    """The record of a line. `ValueError` for a line that is none."""
    try:
        values: dict[str, Any] = json.loads(line)
        made = KINDS[values.pop("kind")]
        for name in ("ring", "synchronised", "nodes"):
            if name in values:
                values[name] = tuple(values[name])
        if "runs" in values:
            values["runs"] = tuple(Run(**run) for run in values["runs"])
        if "ranges" in values:
            values["ranges"] = tuple((first, last) for first, last in values["ranges"])
        return made(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no record of a history: {line[:200]!r}") from error


class History:
    """`with History(path) as history`: a file that records are appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self._file = open(self.path, "w")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._file is not None
        self._file.close()

    def note(self, record: Record) -> None:
        assert self._file is not None
        self._file.write(to_line(record) + "\n")


def read(path: Path) -> Iterator[Record]:
    with open(path) as file:
        for line in file:
            yield from_line(line)


def merged(*histories: Iterable[Record]) -> list[Record]:
    """Records of several writers, in the order of time. Of the same moment, those of the first."""
    return sorted((record for history in histories for record in history), key=lambda r: r.at)
