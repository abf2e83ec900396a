"""What a node has for the dead letters of its queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ringmq_node.queue.block import Block


class LetterPublisher(Protocol):
    """As `broker.routing.internal.InternalPublisher`."""

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        block: Block,
        producer_id: bytes,
        first_sequence: int,
        *,
        transient: bool = False,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        except_queues: frozenset[str] = frozenset(),
    ) -> bool: ...
    def close(self, producer_id: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class LetterDesk:
    """For the outboxes of all queues (`outbox`)."""

    publisher: LetterPublisher
    # Of a letter, with its history.
    properties_bytes_max: int
    # Milliseconds since 1970.
    now_ms: Callable[[], int]
