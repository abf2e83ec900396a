"""The consumers of a queue, as its master knows them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringmq.v1 import admin_pb2 as admin


class ConsumerState(Enum):
    """Whether a consumer is given messages."""

    UNKNOWN = admin.CONSUMER_STATE_UNSPECIFIED
    UP = admin.CONSUMER_STATE_UP
    # The queue has a single active consumer: it is the one, or another one is.
    SINGLE_ACTIVE = admin.CONSUMER_STATE_SINGLE_ACTIVE
    WAITING = admin.CONSUMER_STATE_WAITING
    # It is given nothing more, and has messages that it hasn't settled.
    CANCELLED = admin.CONSUMER_STATE_CANCELLED

    @classmethod
    def _missing_(cls, value: object) -> ConsumerState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """One consumer of a queue."""

    # Given out by the master, rising as consumers come.
    number: int
    consumer_tag: str
    # The node that has the client's connection, and the client's address there, as in
    # `ConnectionInfo`. No address: the consumer is a node's own.
    node: str
    peer: str
    state: ConsumerState
    # False: its messages are acknowledged as they are sent.
    ack_required: bool
    # In force now.
    prefetch_messages: int
    prefetch_bytes: int
    priority: int
    exclusive: bool
    # It is given messages when it asks, and isn't counted in `QueueInfo.consumers`.
    pulls: bool
    # Its client doesn't read as fast as it is sent messages, and gets no more meanwhile.
    held: bool
    # Its share of a window with consumers of other queues; None: it has no such window.
    share_messages: int | None
    share_bytes: int | None
    # Delivered to it, and not settled.
    messages_unacknowledged: int
    bytes_unacknowledged: int

    @property
    def active(self) -> bool:
        """Whether it is given messages, as far as its prefetch has room."""
        return self.state in (ConsumerState.UP, ConsumerState.SINGLE_ACTIVE)

    @classmethod
    def from_wire(cls, wire: admin.ConsumerInfo) -> ConsumerInfo:
        shares = wire.HasField("share")
        return cls(
            number=wire.number,
            consumer_tag=wire.consumer_tag,
            node=wire.node,
            peer=wire.peer,
            state=ConsumerState(wire.state),
            ack_required=wire.ack_required,
            prefetch_messages=wire.prefetch_messages,
            prefetch_bytes=wire.prefetch_bytes,
            priority=wire.priority,
            exclusive=wire.exclusive,
            pulls=wire.pulls,
            held=wire.held,
            share_messages=wire.share.messages if shares else None,
            share_bytes=wire.share.bytes if shares else None,
            messages_unacknowledged=wire.messages_unacknowledged,
            bytes_unacknowledged=wire.bytes_unacknowledged,
        )
