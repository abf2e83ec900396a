"""The application of one member: a log in memory, its prefix on disk, catching up.

It stands for the queue: what is delivered is appended, a sync makes a prefix
durable, a crash loses what is after it, or a part of that. Catching up is as
the queue does it: say on disk that the log is not whole, fetch the state of the
member upstream as of one of its ops, write it, say that it is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringmq_gm.core.held_ops import LogEnd

Entry = tuple[int, bytes]  # the epoch in which it was numbered, the payload


class BrokenInvariantError(AssertionError):
    """The ring did what it must never do."""


@dataclass(slots=True)
class Disk:
    """What outlives a crash. The log's entry `i` is op `i + 1`."""

    log: list[Entry] = field(default_factory=list)
    whole: bool = True
    incarnation: int = 0

    def end(self) -> LogEnd:
        return LogEnd(self.log[-1][0], len(self.log)) if self.log else LogEnd()

    def holds(self, number: int, entry: Entry) -> bool:
        return self.whole and number <= len(self.log) and self.log[number - 1] == entry


class Application:
    """What is in memory. One life of a node has one."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.log = list(disk.log) if disk.whole else []
        # While catching up: where the delivered ops begin, and these ops.
        self.catching_up = False
        self.tail_from = 0
        self.tail: list[Entry] = []
        # Rises with each catch-up, so that the answers to an earlier one are told apart.
        self.catch_up_count = 0
        # Rises when the log is replaced: a sync that began before is of the old one.
        self.log_count = 0
        self.writing = False

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        entry = (epoch, payload)
        if self.catching_up:
            if number != self.tail_from + len(self.tail) + 1:
                raise BrokenInvariantError(f"delivered {number} after {len(self.tail)} in the tail")
            self.tail.append(entry)
        elif number <= len(self.log):
            # The state that was fetched already had it.
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

    def has_delivered(self, state: list[Entry]) -> bool:
        """Whether the last op of this state has come around the ring to me."""
        behind = len(state) - self.tail_from
        return behind <= 0 or (behind <= len(self.tail) and self.tail[behind - 1] == state[-1])

    def take_state(self, state: list[Entry]) -> None:
        """The upstream's log as of its last op: mine is that, and what was delivered since."""
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
        self.catching_up = False
        self.tail = []

    def sync(self, count: int) -> None:
        """The first `count` entries are on disk."""
        self.disk.log = self.log[:count]
        self.disk.whole = True

    def crash(self, kept_count: int) -> None:
        """`kept_count` of the entries that were not synced made it to the disk."""
        if self.disk.whole:
            self.disk.log = self.log[: len(self.disk.log) + kept_count]
