"""What a node has for the dead letters of its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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
        headers: Mapping[str, str] | None = None,
        except_queues: frozenset[str] = frozenset(),
    ) -> bool: ...
    def close(self, producer_id: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class LetterDesk:
    """For the outboxes of all queues (`outbox`)."""

    publisher: LetterPublisher
    properties_bytes_max: int
    now_ms: Callable[[], int]
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
