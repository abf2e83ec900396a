"""The application of one member: a log in memory, its prefix on disk, catching up.

It stands for the queue. A delivered op is appended to the log, a sync makes a prefix of the log
durable, and a crash loses the rest or a part of it. Catching up goes as in the queue: say on
disk that the log is not whole, fetch the state of another member as of one of its ops, write it,
say that the log is whole again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from ringmq_gm.core.held_ops import LogEnd

LogEntry = tuple[int, bytes]  # the epoch in which it was numbered, the payload


class BrokenInvariantError(AssertionError):
    """The ring did a thing that it must never do."""


@dataclass(slots=True)
class VirtualDisk:
    """Outlives a crash. The log's entry `i` is op `i + 1`.

    `whole` is what the application says of the log. It is wrong if `is_cut_unseen`.
    """

    log: list[LogEntry] = field(default_factory=list)
    whole: bool = True
    incarnation: int = 0
    is_cut_unseen: bool = False

    def copy(self) -> Sequence[object]:
        """What `put_back` takes."""
        return self.log.copy()

    def end(self) -> LogEnd:
        return LogEnd(self.log[-1][0], len(self.log)) if self.log else LogEnd()

    def has_op(self, number: int, entry: LogEntry) -> bool:
        return number <= len(self.log) and self.log[number - 1] == entry

    def holds(self, number: int, entry: LogEntry) -> bool:
        return self.whole and self.has_op(number, entry)

    @property
    def is_intact(self) -> bool:
        """Whether nothing that was once synced is missing from the log."""
        return self.whole and not self.is_cut_unseen

    def put_back(self, copy: Sequence[object]) -> None:
        """The disk has this older copy from now on, or nothing; and that is noticed."""
        self.log = cast(list[LogEntry], list(copy))
        self.whole = self.is_cut_unseen = False

    def cut_unseen(self, count: int) -> None:
        """All but the first `count` entries are gone, and nobody notices."""
        if self.whole and count < len(self.log):
            self.log = self.log[:count]
            self.is_cut_unseen = True


class LogApplication:
    """The memory of one life of a node."""

    def __init__(self, disk: VirtualDisk) -> None:
        self.disk = disk
        self.log = list(disk.log) if disk.whole else []
        # While catching up: the ops delivered since, and the number before the first of them.
        self.catching_up = False
        self.tail_from = 0
        self.tail: list[LogEntry] = []
        # Rises with each catch-up: an answer to an earlier one must not be taken.
        self.catch_up_count = 0
        # Rises when the log is replaced: a sync that began before was of the old log.
        self.log_count = 0
        self.writing = False

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        entry = (epoch, payload)
        if self.catching_up:
            if number != self.tail_from + len(self.tail) + 1:
                raise BrokenInvariantError(f"delivered {number} after {len(self.tail)} in the tail")
            self.tail.append(entry)
        elif number <= len(self.log):
            # The state that was fetched had it already.
            if self.log[number - 1] != entry:
                raise BrokenInvariantError(
                    f"delivered {number} {entry}, but has {self.log[number - 1]} there"
                )
        elif number == len(self.log) + 1:
            self.log.append(entry)
        else:
            raise BrokenInvariantError(f"delivered {number} after {len(self.log)}")

    def start_catch_up(self, number: int) -> int:
        self.disk.whole = False
        self.catching_up = True
        self.log_count += 1
        self.writing = False
        self.tail_from = number
        self.tail = []
        self.catch_up_count += 1
        return self.catch_up_count

    def abandon_catch_up(self) -> None:
        """Out of the ring: the answer to come is of no use."""
        self.catch_up_count += 1

    def has_delivered(self, state: list[LogEntry]) -> bool:
        """Whether the last op of this state has come around the ring to this member."""
        behind = len(state) - self.tail_from
        return behind <= 0 or (behind <= len(self.tail) and self.tail[behind - 1] == state[-1])

    def take_state(self, state: list[LogEntry]) -> None:
        """The source's log as of its last op becomes this one's, with the ops delivered since."""
        for index, entry in enumerate(self.tail):
            number = self.tail_from + index + 1
            if number <= len(state):
                if state[number - 1] != entry:
                    raise BrokenInvariantError(f"fetched {state[number - 1]}, delivered {entry}")
            else:
                state.append(entry)
        if len(state) < self.tail_from:
            raise BrokenInvariantError(f"fetched {len(state)} ops, joined after {self.tail_from}")
        self.log = state
        self.disk.is_cut_unseen = False
        self.catching_up = False
        self.tail = []

    def begin_with_own_log(self) -> None:
        """An operator has decided that the ring goes on from what this disk has."""
        self.abandon_catch_up()
        self.catching_up = False
        self.tail = []
        self.log = list(self.disk.log)
        self.log_count += 1
        self.writing = False
        self.disk.whole = True

    @property
    def unsynced(self) -> int:
        """How many entries are not on disk."""
        return max(0, len(self.log) - len(self.disk.log))

    def sync(self, count: int) -> None:
        """The first `count` entries are on disk."""
        self.disk.log = self.log[:count]
        self.disk.whole = True

    def crash(self, kept_count: int) -> None:
        """`kept_count` of the entries that were not synced made it to the disk."""
        if self.disk.whole:
            self.disk.log = self.log[: len(self.disk.log) + kept_count]
