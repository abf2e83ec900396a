"""Queues and nodes as an operator sees them; peers are asked where they know better."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from ringmq_base.pieces import Pieces
from ringmq_gm import Group, MemberId
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.peers import Peers, QueuesAt
from ringmq_node.model.connections import owner_name
from ringmq_node.model.info import (
    ClusterStatus,
    MemberInfo,
    NodeInfo,
    NodeResources,
    QueueCondition,
    QueueInfo,
    StoreNumbers,
    SyncInfo,
)
from ringmq_node.model.names import SEPARATOR
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import QueueMode, QueueRecord
from ringmq_node.model.settings import LIST_MAX
from ringmq_node.replica.description import losses_of, queue_info
from ringmq_node.replica.hosting import Hosting
from ringmq_node.resources import ResourceMonitor
from ringmq_node.resources.budget import PublishBudget
from ringmq_node.resources.buffers import ClientBuffers
from ringmq_node.storage import Store

LIST_DEADLINE_S = 5.0
# A status must not wait for a node that hangs.
RESOURCES_DEADLINE_S = 0.5


@dataclass(frozen=True, slots=True)
class Page:
    """Queues in the order of their names; `next` is the last name if there are more, or empty."""

    queues: tuple[QueueInfo, ...]
    next: str


class Listing:
    """See the module."""

    def __init__(
        self,
        catalogue: QueueCatalogue,
        cluster: Cluster,
        group: Group,
        hosting: Hosting,
        peers: Peers,
        *,
        settings: ClusterSettings,
        gate: NodeGate,
        store: Store,
        monitor: ResourceMonitor,
        budget: PublishBudget,
        buffers: ClientBuffers,
    ) -> None:
        self._catalogue = catalogue
        self._cluster = cluster
        self._group = group
        self._hosting = hosting
        self._peers = peers
        self._settings = settings
        self._gate = gate
        self._store = store
        self._monitor = monitor
        self._budget = budget
        self._buffers = buffers

    # --- queues ---

    async def own_queues(self, names: Sequence[str]) -> QueuesAt:
        """What only this node knows of these queues, described in pieces."""
        me = self._cluster.me.node
        infos: list[QueueInfo] = []
        joining: dict[str, SyncInfo] = {}
        pieces = Pieces()
        for name in names:
            # All of it may have changed since the last piece.
            record = self._catalogue.records.get(name)
            if record is None:
                continue
            replica = self._hosting.replicas.get(record.id)
            failed = self._hosting.failed.get(record.id)
            if replica is not None and replica.mastership is not None:
                infos.append(queue_info(replica))
            elif replica is not None:
                sync = replica.syncing.info(len(replica.store.missing))
                if sync is not None:
                    joining[record.id] = sync
            elif failed is not None:
                down = self._without_master(failed[0])
                infos.append(replace(down, quarantine=f"node {me}: {failed[1]}"))
            await pieces.step()
        return QueuesAt(infos, joining)

    def with_quarantine(self, info: QueueInfo, others: Sequence[str] = ()) -> QueueInfo:
        """`info`, and what an operator has to put right: what this node knows, and `others`."""
        known = [
            self._catalogue.unreadable.get(info.queue),
            self._group.unreadable_views().get(info.id),
            info.quarantine,
            *others,
        ]
        reasons = "; ".join(dict.fromkeys(reason for reason in known if reason))
        is_down = info.condition is QueueCondition.DOWN
        condition = QueueCondition.QUARANTINED if is_down and reasons else info.condition
        if (reasons, condition) == (info.quarantine, info.condition):
            return info
        return replace(info, quarantine=reasons, condition=condition)

    async def with_progress(self, info: QueueInfo) -> QueueInfo:
        """The same, with the progress of the replicas that aren't synchronised, as they tell it."""

        async def told(member: MemberInfo) -> MemberInfo:
            if member.synchronised:
                return member
            try:
                address = self._cluster.address_of(MemberId(member.node, member.incarnation))
                replica = await self._peers.replica_info(
                    address, info.queue, deadline_s=RESOURCES_DEADLINE_S
                )
            except BrokerError:
                # It hangs or is gone, and what is known of it is all that can be shown.
                return member
            return replace(member, sync=replica.sync)

        if all(member.synchronised for member in info.ring):
            return info
        return replace(info, ring=tuple(await asyncio.gather(*map(told, info.ring))))

    async def queues(
        self, prefix: str, *, after: str, queues_max: int, every_vhost: bool = False
    ) -> Page:
        """Queues whose names begin with `prefix` and come after `after`; 0: the largest page.

        They are of the prefix's vhost, or with `every_vhost` of any.

        Each master knows its queues best, so all nodes are asked at once, for the queues of this
        page. A queue whose master doesn't answer is described from the registry's record and view.
        """
        count = min(queues_max or LIST_MAX, LIST_MAX)
        records, unreadable = self._catalogue.records, self._catalogue.unreadable
        every = {**records, **unreadable}
        is_any = every_vhost or SEPARATOR in prefix
        names = sorted(
            name
            for name in every
            if name.startswith(prefix) and name > after and (is_any or SEPARATOR not in name)
        )
        page = names[:count]
        known, failed = await self._ask_nodes(page)
        queues: list[QueueInfo] = []
        pieces = Pieces()
        for name in page:
            info = known.get(name)
            record = self._catalogue.records.get(name)
            if info is None and record is not None:
                info = self._without_master(record)
            elif info is None and name in unreadable:
                info = _unreadable(name)
            # Otherwise it was deleted while the nodes were asked.
            if info is not None:
                queues.append(self.with_quarantine(info, failed.get(name, ())))
            await pieces.step()
        return Page(tuple(queues), page[-1] if len(names) > count else "")

    async def _ask_nodes(
        self, names: Sequence[str]
    ) -> tuple[dict[str, QueueInfo], Mapping[str, Sequence[str]]]:
        """What the masters say of these queues; and where and why replicas are quarantined."""

        async def ask(node: NodeInfo) -> QueuesAt:
            if node.node == self._cluster.me.node:
                return await self.own_queues(names)
            try:
                return await self._peers.own_queues(node.address, names, deadline_s=LIST_DEADLINE_S)
            except BrokerError:
                # Its queues are listed as far as this node knows them.
                return QueuesAt([], {})

        nodes = [node for node in self.nodes() if node.address]
        answers = await asyncio.gather(*map(ask, nodes))
        joining = {
            (queue_id, node.node): sync
            for node, answer in zip(nodes, answers, strict=True)
            for queue_id, sync in answer.joining.items()
        }
        known: dict[str, QueueInfo] = {}
        failed: dict[str, list[str]] = {}
        for info in (info for answer in answers for info in answer.queues):
            if info.condition is QueueCondition.DOWN:
                failed.setdefault(info.queue, []).append(info.quarantine)
            else:
                known[info.queue] = _with_known(info, joining)
        return known, failed

    def _without_master(self, record: QueueRecord) -> QueueInfo:
        wanted = self._settings.wanted_of(record)
        view = self._group.view(record.id)
        members = () if view is None else view.members
        return QueueInfo(
            queue=record.name,
            id=record.id,
            replicas_wanted=wanted.replicas,
            min_insync=wanted.min_insync if view is None else view.min_insync,
            policy=wanted.policy,
            operator_policy=wanted.operator_policy,
            wanted=wanted.facts(),
            mode=wanted.mode,
            durable=record.durable,
            auto_delete=record.auto_delete,
            owner=owner_name(record.owner),
            condition=QueueCondition.DOWN,
            epoch=0 if view is None else view.epoch,
            ring=tuple(
                MemberInfo(member.id.node, member.id.incarnation, member.synced)
                for member in members
            ),
            losses=() if view is None else losses_of(view),
        )

    # --- nodes ---

    def nodes(self) -> list[NodeInfo]:
        """The nodes that belong to the cluster, up or down."""
        return self._cluster.nodes(self._settings.nodes)

    async def status(self, *, with_resources: bool, with_needing: bool) -> ClusterStatus:
        nodes = self.nodes()
        if with_needing:
            ids = [record.id for record in self._catalogue.records.values()]
            needing = await self._cluster.count_needing(ids)
            nodes = [replace(node, queues_needing=needing[node.node]) for node in nodes]
        if with_resources:
            nodes = list(await asyncio.gather(*map(self._with_resources, nodes)))
        return ClusterStatus(
            cluster_id=self._cluster.id,
            node=self._cluster.me.node,
            nodes=tuple(nodes),
            queues=len({**self._catalogue.records, **self._catalogue.unreadable}),
            registry_available=self._cluster.registry_available,
        )

    async def _with_resources(self, node: NodeInfo) -> NodeInfo:
        me = self._cluster.me
        if (node.node, node.incarnation) == (me.node, me.incarnation):
            return replace(node, resources=self.own_resources())
        if not node.address:
            return node
        try:
            resources = await self._peers.resources(node.address, deadline_s=RESOURCES_DEADLINE_S)
        except BrokerError:
            # The status names every node, also one that hangs.
            return node
        return replace(node, resources=resources)

    def own_resources(self) -> NodeResources:
        usage = self._monitor.usage()
        failure = self._gate.failure
        return NodeResources(
            memory_used_bytes=usage.memory_used_bytes,
            memory_limit_bytes=usage.memory_limit_bytes,
            memory_total_bytes=usage.memory_total_bytes,
            memory_alarm=usage.memory_alarm,
            disk_free_bytes=usage.disk_free_bytes,
            disk_limit_bytes=usage.disk_limit_bytes,
            disk_alarm=usage.disk_alarm,
            desired_duration_s=usage.duration_s if isfinite(usage.duration_s) else None,
            store_failure="" if failure is None else str(failure),
            publish_bytes=self._budget.under_way_bytes,
            publish_bytes_max=self._budget.limit_bytes,
            publishes_held=self._budget.waiting,
            unread_bytes=self._buffers.unread.held_bytes,
            unsent_bytes=self._buffers.unsent.used_bytes,
            get_bytes=self._buffers.gets.used_bytes,
            buffer_bytes_max=self._buffers.limit_bytes,
            publishers_blocked_by=tuple(sorted(each.text for each in self._budget.alarms)),
            leftovers=self._hosting.leftovers.describe(),
            set_aside=self._hosting.set_asides.describe(),
            store=store_numbers(self._store),
        )


def _with_known(info: QueueInfo, joining: Mapping[tuple[str, str], SyncInfo]) -> QueueInfo:
    """The queue with the progress of its replicas, `joining` by queue id and node."""
    if all(member.synchronised for member in info.ring):
        return info
    ring = tuple(
        member if member.synchronised else replace(member, sync=joining.get((info.id, member.node)))
        for member in info.ring
    )
    return replace(info, ring=ring)


def _unreadable(name: str) -> QueueInfo:
    """A queue of which only the name is known."""
    return QueueInfo(
        queue=name,
        id="",
        replicas_wanted=0,
        min_insync=0,
        mode=QueueMode.DEFAULT,
        durable=True,
        condition=QueueCondition.DOWN,
    )


def store_numbers(store: Store) -> StoreNumbers:
    """Looks at every queue and every file of the message stores, not at their contents."""
    found = store.statistics()
    both = (found.messages, found.messages_transient)
    return StoreNumbers(
        queue_memory_bytes=found.queue_memory_bytes_now,
        journals_sealed=found.journals_sealed_now,
        sealed_bytes=found.sealed_bytes_now,
        rounds=found.rounds,
        journal_bytes_written=found.journal_bytes_written,
        segment_bytes_written=found.segment_bytes_written,
        body_bytes_elided=found.body_bytes_elided,
        message_store_bytes=sum(each.file_bytes_now for each in both),
        message_store_garbage_bytes=sum(each.garbage_bytes_now for each in both),
        commit_log_bytes_written=found.commit_log_bytes_written,
        message_store_bytes_written=found.message_store_bytes_written,
        scrub_passes=store.counters.scrub_passes,
        scrub_bytes=store.counters.scrub_bytes,
        scrub_faults=store.counters.scrub_faults,
        scrub_messages=store.counters.scrub_messages,
    )
