"""The state behind the fake nodes: queues in memory, the master, and the faults to come.

There is no ring and no disk: a message is confirmed when it is in the list.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import RangeSet


@dataclass
class Message:
    body: bytes
    properties: common.Properties | None
    delivered: bool = False


@dataclass
class Queue:
    """Positions begin with 1. A position is in `ready` or held by one stream, never both."""

    name: str
    messages: dict[int, Message] = field(default_factory=dict)
    ready: RangeSet = field(default_factory=RangeSet)
    producers: dict[bytes, int] = field(default_factory=dict)
    next_position: int = 1
    mode: common.QueueMode.ValueType = common.QUEUE_MODE_DEFAULT
    # None: as an old node, which doesn't send this field.
    durable: bool | None = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, message: Message) -> None:
        self.messages[self.next_position] = message
        self.ready.add(self.next_position, self.next_position)
        self.next_position += 1
        self.changed.set()

    def give_back(self, held: RangeSet) -> None:
        """What a stream held is ready again, and the stream holds nothing."""
        self.ready.update(held.ranges())
        held.clear()
        self.changed.set()

    @property
    def bodies(self) -> list[bytes]:
        return [self.messages[position].body for position in sorted(self.messages)]


@dataclass
class Faults:
    """The faults to come. Each list is used up from the front, one entry per event."""

    #: Per publish stream: how many batches are taken in before the stream breaks ...
    die_after_batches: list[int] = field(default_factory=list)
    #: ... with the last of them enqueued, but not confirmed.
    enqueue_the_last: bool = True
    #: Per publish stream: after how many confirmed batches the node ends it without a word, as one
    #: does that hears nothing of its client any more; 0: not at all.
    hang_up_after_batches: list[int] = field(default_factory=list)
    #: How many consumers are to be sent away.
    sent_away: int = 0
    #: Per batch: None takes it, a Rejected (reason, retryable, ...) refuses it.
    reject: list[broker.Rejected | None] = field(default_factory=list)
    #: Per publish or consume Open: the address of a Moved; "" if the node knows none.
    moved: list[str | None] = field(default_factory=list)
    #: The epoch that it gives with that; 0 as an old node, which doesn't say.
    moved_epoch: int = 0
    #: Per call of any kind: a reason to fail with.
    fail: list[common.Reason.ValueType] = field(default_factory=list)
    #: The same per publish or consume Open.
    refuse: list[common.Reason.ValueType] = field(default_factory=list)
    #: No Open is answered, as by a relay that is cut off from the master.
    open_silently: bool = False
    #: Nothing at all is answered, as by a process that is stopped.
    silent: bool = False
    open_delay_s: float = 0.0
    confirm_delay_s: float = 0.0
    heartbeats: bool = True
    #: What LocateQueue answers, in place of the cluster's master: its address, and the epoch.
    locates: tuple[str, int] | None = None
    #: Acks are taken and never reported, as by a node below `min_insync`.
    settle_silently: bool = False
    #: Per batch: what is told before its confirm, reasons or, empty, that they have ended.
    blocked: list[list[broker.BlockReason.ValueType] | None] = field(default_factory=list)


@dataclass
class Cluster:
    """The state that the nodes share: the queues, and the address of the master."""

    queues: dict[str, Queue] = field(default_factory=dict)
    master: str = ""
    epoch: int = 1
    addresses: list[str] = field(default_factory=list)
