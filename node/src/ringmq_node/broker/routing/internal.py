"""Publishing to an exchange from inside a node: what becomes of dead letters.

The master of a queue publishes what it lets go of, and removes it when every target has it. So
this is at least once by contract: `publish` returns only when the messages are as safe in each
target as a publisher's would be, however often a target's master moves meanwhile.

Sequences tell a repeat. A new master of the same queue that publishes the same messages again,
under the same producer id and sequences, has them enqueued once in each target. Sequences need not
be given in order and may have holes; those of one producer that are on their way must not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_node.model.fields import Headers
from ringmq_node.queue.block import Block


class InternalPublisher(Protocol):
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
    ) -> bool:
        """Returns when every queue that these messages are routed to has confirmed all of them;
        False if there is no such queue (any more).

        `routing_keys`: at least one. `producer_id`: at most 64 bytes, and of one vhost. One that is
        used on two nodes at once is fenced off on the first. `headers`: for headers exchanges,
        those of all messages of the block. `except_queues`: internal names; they get nothing,
        wherever the exchange leads.

        Raises `ClosesCycleError` if it leads to these only, as far as this node knows. Raises
        `BrokerError`: the exchange doesn't exist, a target refuses them for good (its
        `overflow` says so, or it can't tell any more whether it has them), the producer id is used
        elsewhere, or this node stops. After an error some of the targets may have them.
        """
        ...

    def close(self, producer_id: bytes) -> None:
        """This producer publishes nothing more here. What is on its way is given up."""
        ...
