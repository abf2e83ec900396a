"""A queue's consumers, as operators see them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

# Of a consumer's tag, as UTF-8.
CONSUMER_TAG_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class ConsumerLabel:
    """What people know a consumer by, and its queue's core has no use for."""

    # As the client says it, or empty.
    tag: str = ""
    # The node that has the client's connection (empty: the master's own), and the client's address
    # there (empty: it isn't known).
    node: str = ""
    peer: str = ""
    # Its messages are acknowledged as they are sent.
    auto_ack: bool = False


class ConsumerStanding(Enum):
    """Whether a consumer is given messages; names are those of `ringmq.v1.ConsumerState`."""

    UP = auto()
    # Of a queue with a single active consumer: it is the one, or another one is.
    SINGLE_ACTIVE = auto()
    WAITING = auto()
    # It is given nothing more, and has messages that it hasn't settled.
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """One consumer of a queue."""

    # Given out by the master, rising as consumers come.
    number: int
    label: ConsumerLabel
    standing: ConsumerStanding
    prefetch_messages: int
    prefetch_bytes: int
    priority: int
    exclusive: bool
    # It is given messages when it asks, and isn't counted among the queue's consumers.
    pulls: bool
    # Its client doesn't read as fast as it is sent messages, and gets no more meanwhile.
    is_held: bool
    # Of the window that it shares with consumers of other queues: messages, bytes. None: of none.
    share: tuple[int, int] | None
    messages_unacknowledged: int
    bytes_unacknowledged: int


@dataclass(frozen=True, slots=True)
class ConsumerPage:
    """In the order of their numbers, which are those of one master in one epoch. `next`: the last
    one's if there are more, or 0."""

    master: str
    epoch: int
    consumers: tuple[ConsumerInfo, ...]
    next: int
