"""What the masters on other nodes say of their queues; questions that come together share a call.

Who declares a queue is told by its master that it serves. Of a thousand queues that are declared at
once, two thirds have their masters on other nodes: a call for each would cost these nodes more than
the queues do.

The first question of a node is asked at once, and those that come before its answer are asked
together after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice

from ringmq_node.broker.peers import Peers
from ringmq_node.model.info import QueueInfo
from ringmq_node.model.reasons import BrokerError, quarantined
from ringmq_node.model.settings import CALL_DEADLINE_S, LIST_MAX
from ringmq_node.replica.hosting import Spawn

Answers = dict[str, asyncio.Future[QueueInfo | None]]


class Descriptions:
    """Of the queues of other nodes."""

    def __init__(self, peers: Peers, spawn: Spawn) -> None:
        self._peers = peers
        self._spawn = spawn
        # What is asked next, by address. A node is there while somebody asks it.
        self._next: dict[str, Answers] = {}

    async def of(self, queue: str, address: str) -> QueueInfo | None:
        """The queue's description by the node at `address`; None if its master isn't there.

        Raises `BrokerError` as `Peers` does, and if the replica there is quarantined. The caller
        has the deadline.
        """
        asked = self._next.get(address)
        if asked is None:
            asked = self._next[address] = {}
            self._spawn(self._ask_all(address, asked), f"descriptions by {address}")
        answer = asked.get(queue)
        if answer is None:
            answer = asked[queue] = asyncio.get_running_loop().create_future()
        # Several may wait for it: one that is cancelled must not cancel it.
        return await asyncio.shield(answer)

    async def _ask_all(self, address: str, asked: Answers) -> None:
        """One call after another, while there is something to ask."""
        try:
            while asked:
                now = {queue: asked.pop(queue) for queue in [*islice(asked, LIST_MAX)]}
                await self._ask(address, now)
        finally:
            del self._next[address]
            for answer in asked.values():
                answer.cancel()

    async def _ask(
        self, address: str, asked: Mapping[str, asyncio.Future[QueueInfo | None]]
    ) -> None:
        try:
            own = await self._peers.own_queues(address, [*asked], deadline_s=CALL_DEADLINE_S)
        except BrokerError as error:
            for answer in asked.values():
                answer.set_exception(error)
                # Nobody may be waiting any more, and asyncio would log an error about that.
                answer.exception()
        except BaseException:
            for answer in asked.values():
                answer.cancel()
            raise
        else:
            found = {info.queue: info for info in own.queues}
            for queue, answer in asked.items():
                info = found.get(queue)
                if info is not None and info.quarantine:
                    answer.set_exception(quarantined(queue, info.quarantine))
                    answer.exception()
                else:
                    answer.set_result(info)
