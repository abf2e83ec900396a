"""What a node has for the dead letters of its queues: who publishes them, and room in memory.

A letter is in memory from when its body is read until its target has confirmed it. While a target
is down that may be hours, and it may be the target of a thousand queues. So the room is shared, by
a threshold that falls while it fills (as in `resources.budget`): a queue has no more bytes under
way than are left. Nobody has to be woken when bytes become free: a queue with letters always has
one under way, however little is left, and looks for room when that one has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringmq_base.limits import MIB
from ringmq_node.model.fields import Headers
from ringmq_node.model.foreign import PropertiesCodecs
from ringmq_node.queue.block import Block

LETTERS_BYTES_MAX = 64 * MIB


class LetterPublisher(Protocol):
    """As `broker.routing.internal.InternalPublisher`."""

    @property
    def codecs(self) -> PropertiesCodecs:
        """Of other protocols' properties."""
        ...

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_keys: Sequence[str],
        block: Block,
        producer_id: bytes,
        first_sequence: int,
        *,
        transient: bool = False,
        priority: int = 0,
        headers: Headers | None = None,
        except_queues: frozenset[str] = frozenset(),
    ) -> bool: ...
    def close(self, producer_id: bytes) -> None: ...


class LetterMemory:
    """Of one node."""

    def __init__(self, limit_bytes: int = LETTERS_BYTES_MAX) -> None:
        """`limit_bytes`: of all letters that are under way, but for one of each queue."""
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """So many more bytes are under way, or fewer."""
        self.held_bytes += size_bytes

    def window_bytes(self) -> int:
        """How many bytes one queue may have under way."""
        return max(self.limit_bytes - self.held_bytes, 0)


@dataclass(frozen=True, slots=True)
class LetterDesk:
    """For the outboxes of all queues (`outbox`)."""

    publisher: LetterPublisher
    # Of a letter, with its history.
    properties_bytes_max: int
    # Milliseconds since 1970.
    now_ms: Callable[[], int]
    memory: LetterMemory = field(default_factory=LetterMemory)
