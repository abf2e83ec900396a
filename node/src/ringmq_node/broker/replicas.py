"""What an operator asks of a queue's replicas one by one, rather than of its master.

Any node takes such a call, and passes it to the nodes of the replicas. A node that gets it from
another node acts on its own replica.
"""

from __future__ import annotations

import asyncio

from ringmq_gm import MemberId
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.locating import Locator
from ringmq_node.broker.peers import Peers
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.replica.syncing import Word


class Replicas:
    """See the module. Each method raises `BrokerError`."""

    def __init__(self, cluster: Cluster, locator: Locator, peers: Peers) -> None:
        self._cluster = cluster
        self._locator = locator
        self._peers = peers

    async def sync(self, queue: str, node: str, *, cancel: bool, deadline_s: float) -> list[str]:
        """Has the replicas that aren't synchronised (the one on `node`, if named) fetch what they
        lack, or stop fetching; returns their nodes."""
        view = self._locator.view_of(queue)
        if node and all(member_id.node != node for member_id in view.ids):
            raise BrokerError(
                Reason.NOT_A_MEMBER,
                f"queue {queue!r} has no replica in its ring on node {node!r}",
                queue=queue,
                node=node,
            )
        joining = [
            member.id
            for member in view.members
            if not member.synced and node in ("", member.id.node)
        ]

        async def tell(member_id: MemberId) -> list[str]:
            if member_id == self._cluster.me:
                return self.sync_here(queue, cancel=cancel)
            address = self._cluster.address_of(member_id)
            return await self._peers.sync_replica(
                address, queue, member_id.node, cancel=cancel, deadline_s=deadline_s
            )

        # All are told before the first that can't be is reported.
        told = await asyncio.gather(*map(tell, joining), return_exceptions=True)
        for outcome in told:
            if isinstance(outcome, BaseException):
                raise outcome
        return sorted(
            each for nodes in told if not isinstance(nodes, BaseException) for each in nodes
        )

    def sync_here(self, queue: str, *, cancel: bool) -> list[str]:
        """Tells this node's replica; returns this node, or nothing if it isn't joining."""
        replica = self._locator.replica_of(queue)
        if replica.syncing.info(len(replica.store.missing)) is None:
            return []
        replica.syncing.say(Word.STOP if cancel else Word.FETCH)
        return [self._cluster.me.node]
