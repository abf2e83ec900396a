"""What operators change for the whole cluster. A client's `operator` has these calls.

    await client.operator.set_policy(Policy("orders", "^orders", mirrors=Mirrors(3)))

Each is made again at another node as long as that is safe: the calls say what should be, so a
second one does no harm.
"""

from __future__ import annotations

from collections.abc import Callable

from ringmq.calls.arguments import checked_calls
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.errors import NodeNotFoundError, PolicyNotFoundError
from ringmq.model.comparison import ReplicaComparison
from ringmq.model.connections import ConnectionInfo, ConnectionList
from ringmq.model.consumers import ConsumerInfo
from ringmq.model.policies import MasterMove, Policy
from ringmq.v1 import admin_pb2 as admin

# How long the comparison of a queue's replicas may take, by default.
VERIFY_S = 3600.0


def _ignore(progress: ReplicaComparison) -> None:
    """`on_progress`, where nobody asks for it."""


@checked_calls
class Operator:
    """Made by `Client.operator`."""

    def __init__(self, nodes: KnownNodes) -> None:
        self._nodes = nodes

    async def set_policy(self, policy: Policy, *, deadline_s: float | None = None) -> int:
        """Adds or replaces the policy, in the client's vhost; returns to how many queues, or
        exchanges, or both together, it applies now."""
        request = request_of(admin.SetPolicyRequest, policy=policy.to_wire(self._nodes.vhost))

        async def attempt(node: NodeChannel, timeout_s: float) -> int:
            answer = await node.admin.SetPolicy(request, timeout=timeout_s)
            return answer.queues + answer.exchanges

        return await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def delete_policy(
        self, name: str, *, is_operator: bool = False, deadline_s: float | None = None
    ) -> None:
        """Raises `PolicyNotFoundError` if there is none of this name."""
        request = request_of(
            admin.DeletePolicyRequest, name=name, is_operator=is_operator, vhost=self._nodes.vhost
        )
        attempts = 0

        async def attempt(node: NodeChannel, timeout_s: float) -> None:
            nonlocal attempts
            attempts += 1
            await node.admin.DeletePolicy(request, timeout=timeout_s)

        try:
            await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)
        except PolicyNotFoundError:
            # The answer of the first attempt may have been lost.
            if attempts == 1:
                raise

    async def policies(self, *, deadline_s: float | None = None) -> list[Policy]:
        """Of the client's vhost, in the order in which they are tried; operator policies last."""
        request = request_of(admin.ListPoliciesRequest, vhost=self._nodes.vhost)

        async def attempt(node: NodeChannel, timeout_s: float) -> list[Policy]:
            answer = await node.admin.ListPolicies(request, timeout=timeout_s)
            return [Policy.from_wire(wire) for wire in answer.policies]

        return await self._nodes.call(attempt, deadline_s=deadline_s)

    async def connections(self, *, deadline_s: float | None = None) -> ConnectionList:
        """All that have streams, of all vhosts, and how their publishers fare."""
        found: list[ConnectionInfo] = []
        silent: set[str] = set()
        after = ""
        while True:
            request = request_of(admin.ListConnectionsRequest, after=after)

            async def attempt(
                node: NodeChannel,
                timeout_s: float,
                request: admin.ListConnectionsRequest = request,
            ) -> admin.ListConnectionsResponse:
                return await node.admin.ListConnections(request, timeout=timeout_s)

            answer = await self._nodes.call(attempt, deadline_s=deadline_s)
            found += map(ConnectionInfo.from_wire, answer.connections)
            silent |= {*answer.silent_nodes}
            after = answer.next
            if not after:
                return ConnectionList(tuple(found), tuple(sorted(silent)))

    async def consumers(self, queue: str, *, deadline_s: float | None = None) -> list[ConsumerInfo]:
        """Of a queue, in the order in which they came. The deadline is per page of 1000."""
        found: list[ConsumerInfo] = []
        # The numbers are those of one master in one epoch.
        source: tuple[str, int] | None = None
        after = 0
        while True:
            request = request_of(
                admin.ListConsumersRequest, vhost=self._nodes.vhost, queue=queue, after=after
            )

            async def attempt(
                node: NodeChannel, timeout_s: float, request: admin.ListConsumersRequest = request
            ) -> admin.ListConsumersResponse:
                return await node.admin.ListConsumers(request, timeout=timeout_s)

            page = await self._nodes.call(attempt, deadline_s=deadline_s)
            if after and (page.node, page.epoch) != source:
                # All of them have come anew.
                found.clear()
                after = 0
                continue
            source = page.node, page.epoch
            found += map(ConsumerInfo.from_wire, page.consumers)
            after = page.next
            if not after:
                return found

    async def verify_queue(
        self,
        queue: str,
        *,
        rate_bytes_max: int = 0,
        on_progress: Callable[[ReplicaComparison], None] = _ignore,
        deadline_s: float = VERIFY_S,
    ) -> ReplicaComparison:
        """Compares the queue's synchronised replicas, while it is in use.

        `rate_bytes_max`: bytes of bodies that each replica reads per second; 0: as fast as they
        come. `on_progress` is called now and then. It begins anew if the node that is asked fails.
        """
        request = request_of(
            admin.VerifyQueueRequest,
            vhost=self._nodes.vhost,
            queue=queue,
            rate_bytes_max=rate_bytes_max,
        )

        async def attempt(asked: NodeChannel, timeout_s: float) -> ReplicaComparison:
            last = ReplicaComparison.from_wire(admin.VerifyQueueResponse())
            async for answer in asked.admin.VerifyQueue(request, timeout=timeout_s):
                last = ReplicaComparison.from_wire(answer)
                on_progress(last)
            return last

        return await self._nodes.call(attempt, deadline_s=deadline_s, attempt_s=deadline_s)

    async def drain(
        self, node: str, *, evacuate: bool = False, deadline_s: float | None = None
    ) -> None:
        """The node gives its masters away and gets none; with `evacuate`, its replicas go, too.

        It stays so until `revive`. `cluster_status` shows what is left on it.
        """
        request = request_of(admin.DrainNodeRequest, node=node, evacuate=evacuate)

        async def attempt(asked: NodeChannel, timeout_s: float) -> None:
            await asked.admin.DrainNode(request, timeout=timeout_s)

        await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def revive(self, node: str, *, deadline_s: float | None = None) -> None:
        """The node gets masters and replicas again."""
        request = request_of(admin.ReviveNodeRequest, node=node)

        async def attempt(asked: NodeChannel, timeout_s: float) -> None:
            await asked.admin.ReviveNode(request, timeout=timeout_s)

        await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def forget(self, node: str, *, deadline_s: float | None = None) -> None:
        """The node is down and will not come back: the cluster goes on without it and its disk."""
        request = request_of(admin.ForgetNodeRequest, node=node)
        attempts = 0

        async def attempt(asked: NodeChannel, timeout_s: float) -> None:
            nonlocal attempts
            attempts += 1
            await asked.admin.ForgetNode(request, timeout=timeout_s)

        try:
            await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)
        except NodeNotFoundError:
            # The answer of the first attempt may have been lost.
            if attempts == 1:
                raise

    async def rebalance(
        self, prefix: str = "", *, dry_run: bool = False, deadline_s: float | None = None
    ) -> list[MasterMove]:
        """Spreads the masters of all queues evenly over the nodes, or of those of the client's
        vhost whose names begin with `prefix`."""
        vhost = self._nodes.vhost if prefix else ""
        request = request_of(
            admin.RebalanceQueuesRequest, prefix=prefix, dry_run=dry_run, vhost=vhost
        )
        wanted_s = self._nodes.deadline_s if deadline_s is None else deadline_s

        async def attempt(asked: NodeChannel, timeout_s: float) -> list[MasterMove]:
            answer = await asked.admin.RebalanceQueues(request, timeout=timeout_s)
            return [
                MasterMove(m.queue, m.old_master, m.new_master, m.error, m.vhost or "/")
                for m in answer.moves
            ]

        return await self._nodes.call(
            attempt, deadline_s=wanted_s, attempt_s=wanted_s, changes=True
        )
