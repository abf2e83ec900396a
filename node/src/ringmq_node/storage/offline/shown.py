"""The records of a file, as `ringmq store inspect` shows them, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.format.tables import BodyRange
from ringmq_node.storage.queue.choice import choose, live_bytes
from ringmq_node.storage.queue.recovery import Recovered

Details = dict[str, object]


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """One record; or, with a `fault`, bytes that are none. `details` by kind, see docs/cli.md."""

    file: str
    offset: int
    length: int
    kind: str
    number: int = 0
    epoch: int = 0
    synced: int = 0
    transient: bool = False
    # Of the bodies in the record, and of those that it refers to.
    messages: int = 0
    body_bytes: int = 0
    # None: not known. Of a record of the message store all its messages live, or none do: it is
    # referred to as a whole.
    messages_live: int | None = None
    bytes_live: int | None = None
    details: Details = field(default_factory=dict)
    fault: str | None = None


@dataclass(slots=True)
class FileSummary:
    """The sums of all records of one file; `number` is None where the header is damaged."""

    file: str
    kind: str
    number: int | None
    size_bytes: int
    records: int = 0
    messages: int = 0
    body_bytes: int = 0
    # None: not known.
    messages_live: int | None = 0
    bytes_live: int | None = 0
    faults: int = 0

    def add(self, record: ShownRecord) -> None:
        self.records += record.fault is None
        self.faults += record.fault is not None
        self.messages += record.messages
        self.body_bytes += record.body_bytes
        if record.fault is not None:
            return
        if None in (self.messages_live, record.messages_live):
            self.messages_live = self.bytes_live = None
        else:
            self.messages_live = (self.messages_live or 0) + (record.messages_live or 0)
            self.bytes_live = (self.bytes_live or 0) + (record.bytes_live or 0)


@dataclass(frozen=True, slots=True)
class LiveMessages:
    """Tells a queue's living messages from garbage."""

    found: Recovered

    def of(self, bodies: Sequence[BodyRange]) -> tuple[int, int]:
        """The number of messages that live, and the bytes of their bodies."""
        live = self.found.state.live
        chosen = choose(bodies, live, RangeSet(), RangeSet(), self.found.cuts)
        count = sum(choice[3] for choice in chosen)
        return count, sum(live_bytes(choice, live) for choice in chosen)
