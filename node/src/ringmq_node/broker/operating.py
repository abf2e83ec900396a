"""What operators change for the whole cluster, through any node: policies, nodes, masters.

A change is written to the registry. It is in force on each node as soon as that node's watch has
shown it, and the reconcilers bring the queues there. Every method raises `BrokerError`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from ringmq_gm import MemberId
from ringmq_gm.registry.base import Guard, Put, Registry, RegistryError
from ringmq_node.broker.catalogue import QueueCatalogue, registry_away
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.listing import Listing
from ringmq_node.broker.placement import NodeStanding
from ringmq_node.broker.rebalancing import Mastered, MasterMove, mastered, plan
from ringmq_node.broker.topology.topology import Topology
from ringmq_node.model.names import DEFAULT_VHOST, check_vhost, in_vhost
from ringmq_node.model.policies import ApplyTo, Policy, policy_said, unknown_policy
from ringmq_node.model.reasons import BrokerError, Reason, bad_request

logger = logging.getLogger(__name__)

# The share of a call's time that the registry may take.
REGISTRY_SHARE = 0.75
# Masters that are moved at a time: publishers of their queues wait meanwhile.
MOVES_AT_ONCE = 4
# Of the time of a rebalancing: the rest is for the answer.
MOVES_SHARE = 0.9
# Less is left to no move: it would only be begun. (A timer of the loop may be a millisecond early.)
MOVE_S_MIN = 0.05
OPERATIONS = "operations/"
OPERATION_LEASE_S = 10.0

# Makes the mirror on this node the queue's master.
Move = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Whether the policy is new, and to how many queues and exchanges it applies now."""

    created: bool
    queues: int
    exchanges: int


class Operating:
    """See the module."""

    def __init__(
        self,
        registry: Registry,
        settings: ClusterSettings,
        catalogue: QueueCatalogue,
        cluster: Cluster,
        listing: Listing,
        gate: NodeGate,
        topology: Topology,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._cluster = cluster
        self._listing = listing
        self._catalogue = catalogue
        self._gate = gate
        self._topology = topology

    @property
    def nodes(self) -> Collection[str]:
        """Of the cluster, those that are down included."""
        return self._settings.nodes

    def unknown_nodes(self, named: Iterable[str]) -> list[str]:
        return [node for node in named if node not in self.nodes]

    # --- policies; the vhost "" is "/" ---

    def policies(self) -> list[Policy]:
        """By vhost, in the order in which they are tried; operator policies last."""
        return self._settings.policies()

    async def policies_of(self, vhost: str) -> list[Policy]:
        await self._check_vhost(vhost)
        return [each for each in self.policies() if each.vhost == (vhost or DEFAULT_VHOST)]

    async def set_policy(self, policy: Policy, deadline_s: float) -> PolicySet:
        """Adds or replaces it."""
        self._gate.check()
        mirrors = policy.definition.mirrors
        # A name that is mistyped would move the queues away from where they are.
        unknown = self.unknown_nodes((mirrors and mirrors.nodes) or ())
        if unknown:
            raise bad_request(
                f"mirrors: there is no node {unknown[0]!r}; the cluster has "
                f"{', '.join(sorted(self._settings.nodes))}",
                field="mirrors",
            )
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                await self._topology.ensure_vhost(policy.vhost)
                created = await self._settings.set_policy(
                    policy, lambda: self._topology.vhost_guards(policy.vhost)
                )
        except TimeoutError:
            raise registry_away() from None
        logger.warning(
            "%s: %r, priority %d, %s",
            policy,
            policy.pattern,
            policy.priority,
            policy.definition.facts(),
        )
        return PolicySet(created, self._applied(policy), self._applied_to_exchanges(policy))

    def _applied_to_exchanges(self, policy: Policy) -> int:
        if policy.is_operator or policy.apply_to is ApplyTo.QUEUES:
            return 0
        router = self._topology.router
        found = self._topology.exchanges(policy.vhost)
        return sum(router.wanted_of(each).policy == policy.name for each in found)

    def _applied(self, policy: Policy) -> int:
        if policy.apply_to is ApplyTo.EXCHANGES:
            return 0
        records = self._catalogue.records.values()
        wanted = [
            self._settings.wanted_of(each) for each in records if in_vhost(each.name, policy.vhost)
        ]
        names = (each.operator_policy if policy.is_operator else each.policy for each in wanted)
        return sum(name == policy.name for name in names)

    async def delete_policy(
        self, vhost: str, name: str, deadline_s: float, *, is_operator: bool
    ) -> None:
        self._gate.check()
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                await self._check_vhost(vhost)
                existed = await self._settings.delete_policy(vhost, name, is_operator=is_operator)
        except TimeoutError:
            raise registry_away() from None
        if not existed:
            raise unknown_policy(vhost, name, is_operator=is_operator)
        logger.warning("%s: deleted", policy_said(vhost, name, is_operator=is_operator))

    async def _check_vhost(self, vhost: str) -> None:
        if vhost:
            check_vhost(vhost)
        await self._topology.ensure_vhost(vhost)

    # --- nodes ---

    async def drain(self, node: str, deadline_s: float, *, evacuate: bool) -> None:
        """The node gives its masters away, and gets no more; with `evacuate` its replicas, too."""
        await self._set_standing(node, NodeStanding(drained=True, evacuated=evacuate), deadline_s)
        logger.warning("node %s: %s", node, "to be evacuated" if evacuate else "drained")

    async def revive(self, node: str, deadline_s: float) -> None:
        await self._set_standing(node, NodeStanding(), deadline_s)
        logger.warning("node %s: revived", node)

    async def _set_standing(self, node: str, standing: NodeStanding, deadline_s: float) -> None:
        self._gate.check()
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                await self._settings.set_standing(node, standing)
        except TimeoutError:
            raise registry_away() from None

    async def forget(self, node: str, deadline_s: float) -> None:
        """The node is down for good: its disk is lost to the cluster."""
        self._gate.check()
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                await self._settings.forget_node(node)
        except TimeoutError:
            raise registry_away() from None
        logger.warning("node %s: forgotten", node)

    # --- masters ---

    async def rebalance(
        self, prefix: str, deadline_s: float, *, move: Move | None, every_vhost: bool
    ) -> list[MasterMove]:
        """Carries the moves out by `move`, a few at a time; None: only tells them.

        One rebalancing of the cluster at a time, or two of them would undo each other's work. When
        the time is up, those that weren't made say so: the others are told all the same.
        """
        end = asyncio.get_running_loop().time() + deadline_s * MOVES_SHARE
        async with asyncio.timeout(deadline_s):
            if move is None:
                return await self._plan(prefix, every_vhost)
            async with self._alone("rebalance"):
                gate = asyncio.Semaphore(MOVES_AT_ONCE)
                moves = await self._plan(prefix, every_vhost)
                made = (_moved(each, move, gate, end) for each in moves)
                return [*await asyncio.gather(*made)]

    async def _plan(self, prefix: str, every_vhost: bool) -> list[MasterMove]:
        fleet = self._cluster.fleet_of(
            [MemberId(n.node, n.incarnation) for n in self._listing.nodes() if n.address],
            self._settings.nodes,
        )
        queues: list[Mastered] = []
        after = ""
        while True:
            page = await self._listing.queues(
                prefix, after=after, queues_max=0, every_vhost=every_vhost
            )
            for info in page.queues:
                record = self._catalogue.records.get(info.queue)
                found = record and mastered(info, self._settings.wanted_of(record), fleet)
                if found:
                    queues.append(found)
            if not page.next:
                return plan(queues, [name for name in fleet.nodes if fleet.takes_replicas(name)])
            after = page.next

    @asynccontextmanager
    async def _alone(self, operation: str) -> AsyncIterator[None]:
        """Holds the cluster's only place for this operation; the lease ends with the node."""
        key = OPERATIONS + operation
        try:
            session = await self._registry.session(OPERATION_LEASE_S)
            try:
                put = Put(key, self._cluster.me.node.encode(), leased=True)
                if await self._registry.commit([Guard(key, 0)], [put], session=session) is None:
                    raise BrokerError(Reason.BUSY, f"another {operation} is under way")
                yield
            finally:
                await session.close()
        except RegistryError as error:
            raise registry_away() from error


async def _moved(
    planned: MasterMove, move: Move, gate: asyncio.Semaphore, end: float
) -> MasterMove:
    """`end`: when it must be over, on the loop's clock."""
    async with gate:
        if end - asyncio.get_running_loop().time() < MOVE_S_MIN:
            return replace(planned, error="not begun: the time was up")
        try:
            async with asyncio.timeout_at(end):
                await move(planned.queue, planned.new_master)
        except (BrokerError, TimeoutError) as error:
            return replace(planned, error=str(error) or "no answer in time")
    return planned
