"""The messages that a test saw delivered, and its judgement of them.

The oracle, in one sentence: every confirmed message is delivered, at one position only, in the
order of publishing, and marked if it comes again; a message that was never confirmed may be there,
once, or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ringmq import Batch


class Published(Protocol):
    """A publisher's record of its own messages, by their numbers."""

    tag: str
    attempted: int
    confirmed: set[int]


@dataclass(slots=True)
class Delivered:
    """Everything that consumers of one queue were given, noted as it came."""

    # (tag, number) -> the positions at which it was seen: one, or it was enqueued twice.
    positions: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    # position -> the (tag, number) of the message there.
    at: dict[int, tuple[str, int]] = field(default_factory=dict)
    repeats: int = 0
    faults: list[str] = field(default_factory=list)
    # Per consumer and stream: the last position that came on it for the first time.
    _last: dict[tuple[str, int], int] = field(default_factory=dict)

    def note(self, consumer: str, batch: Batch) -> None:
        """A batch has come. Consumers are those that never requeue by themselves."""
        for message in batch:
            key = parse_body(message.body)
            position = message.position
            before = self.at.setdefault(position, key)
            if before != key:
                self.faults.append(f"position {position} was {before} and is {key}")
            seen = self.positions.setdefault(key, set())
            if position in seen:
                self.repeats += 1
                if not message.redelivered:
                    self.faults.append(f"{key} at {position} came again without `redelivered`")
            seen.add(position)
            stream = (consumer, batch.generation)
            if not message.redelivered:
                if self._last.get(stream, -1) >= position:
                    self.faults.append(
                        f"position {position} came after {self._last[stream]} on one stream"
                    )
                self._last[stream] = position

    def merge(self, other: Delivered) -> None:
        """Adds the deliveries that another test client saw from the same queue."""
        for position, key in other.at.items():
            if self.at.setdefault(position, key) != key:
                self.faults.append(f"position {position}: {self.at[position]} and {key}")
        for key, seen in other.positions.items():
            self.positions.setdefault(key, set()).update(seen)
        self.repeats += other.repeats
        self.faults += other.faults

    def judge(self, *loads: Published) -> None:
        """`AssertionError` unless all that is promised of these publishers holds."""
        assert not self.faults, self.faults[:5]
        twice = {key: seen for key, seen in self.positions.items() if len(seen) > 1}
        assert not twice, f"{len(twice)} enqueued twice, e.g. {list(twice.items())[:3]}"
        for load in loads:
            numbers = {number for tag, number in self.positions if tag == load.tag}
            lost = load.confirmed - numbers
            assert not lost, f"{len(lost)} of {len(load.confirmed)} lost: {_shown(lost)}"
            invented = {number for number in numbers if number >= load.attempted}
            assert not invented, f"never published: {_shown(invented)}"
            in_order = [number for _, (tag, number) in sorted(self.at.items()) if tag == load.tag]
            assert in_order == sorted(in_order), "positions are not in the order of publishing"


def body_of(tag: str, number: int, size_bytes: int) -> bytes:
    return f"{tag} {number:09d} ".encode().ljust(size_bytes, b".")


def parse_body(body: bytes) -> tuple[str, int]:
    tag, number, _ = body.split(b" ", 2)
    return tag.decode(), int(number)


def _shown(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    return f"{ordered[:5]}..{ordered[-1]}"
