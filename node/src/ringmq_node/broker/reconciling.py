"""The reconciler's shell: shows it the queues that are mastered here, and carries its steps out.

A queue is shown when its record or its view has changed, and all of them when nodes or settings
have, or when `RESYNC_S` have passed. So a notice that is lost costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ringmq_gm import Group, PromotionError, RingClosedError, Role, View, ViewError, ring_key
from ringmq_gm.registry.base import Guard, Put, Registry, RegistryError
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.reconciler import (
    Assign,
    DeadlineCame,
    Effect,
    FleetSeen,
    HandOver,
    LookAtAll,
    QueueFacts,
    QueueGone,
    QueueSeen,
    Reconciler,
    RemoveMember,
    SetMinInsync,
    StepEnded,
)
from ringmq_node.model.records import RecordError, decode_entry
from ringmq_node.replica.hosting import Hosting, Spawn
from ringmq_node.replica.interleaver import Interleaver

logger = logging.getLogger(__name__)

# Every queue is looked at so often, whatever has been heard.
RESYNC_S = 10.0
# Notices within this time are dealt with together.
GATHER_S = 0.02
# Commits that are under way at a time.
COMMITS_MAX = 8


class Reconciling:
    """See the module."""

    def __init__(
        self,
        reconciler: Reconciler,
        registry: Registry,
        catalogue: QueueCatalogue,
        settings: ClusterSettings,
        cluster: Cluster,
        group: Group,
        hosting: Hosting,
        *,
        gate: NodeGate,
        spawn: Spawn,
    ) -> None:
        self._core = reconciler
        self._registry = registry
        self._catalogue = catalogue
        self._settings = settings
        self._cluster = cluster
        self._group = group
        self._hosting = hosting
        self._gate = gate
        self._spawn = spawn
        self._changed: dict[str, None] = {}
        self._look_at_all = True
        self._wake = asyncio.Event()
        self._commits = asyncio.Semaphore(COMMITS_MAX)

    # --- notices ---

    def queue_changed(self, queue_id: str) -> None:
        self._changed[queue_id] = None
        self._wake.set()

    def all_changed(self) -> None:
        self._look_at_all = True
        self._wake.set()

    async def watch_nodes(self) -> None:
        """Until cancelled."""
        while True:
            await self._group.nodes_changed.wait()
            self.all_changed()

    # --- looking ---

    async def run(self) -> None:
        """Until cancelled."""
        resync_at = 0.0
        while True:
            await self._wait(resync_at)
            self._wake.clear()
            # A node that stops or has failed hands over and leaves by itself.
            if not self._gate.is_open:
                return
            now = self._now()
            everything = self._look_at_all or now >= resync_at
            changed, self._changed, self._look_at_all = self._changed, {}, False
            if everything:
                resync_at = now + RESYNC_S
                fleet = self._cluster.fleet(self._settings.nodes, now)
                self._perform(self._core.step(FleetSeen(fleet), now=now))
            await self._show(self._all_known() if everything else changed)
            deadline = self._core.next_deadline()
            if deadline is not None and self._now() >= deadline:
                self._perform(self._core.step(DeadlineCame(), now=self._now()))

    async def _wait(self, resync_at: float) -> None:
        deadline = self._core.next_deadline()
        until = resync_at if deadline is None else min(resync_at, deadline)
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            return

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _all_known(self) -> list[str]:
        """The queues that are mastered here, and those that the core believes to be."""
        masters = (replica.record.id for replica in self._hosting.masters())
        return [*dict.fromkeys([*self._core.queue_ids(), *masters])]

    async def _show(self, queue_ids: Iterable[str]) -> None:
        ids = list(queue_ids)
        interleaver = Interleaver("reconciling", len(ids))
        for queue_id in ids:
            facts = self._facts(queue_id)
            seen = QueueGone(queue_id) if facts is None else QueueSeen(facts)
            self._perform(self._core.step(seen, now=self._now()))
            await interleaver.step()

    def _facts(self, queue_id: str) -> QueueFacts | None:
        """None if the queue isn't mastered here."""
        replica = self._hosting.replicas.get(queue_id)
        if replica is None or replica.ring.role is not Role.MASTER:
            return None
        # The catalogue may already have another record than the replica was told of.
        record = self._catalogue.records.get(replica.record.name)
        if record is None or record.id != queue_id:
            return None
        return QueueFacts(record, self._settings.wanted_of(record), replica.view)

    # --- doing ---

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case LookAtAll():
                    self.all_changed()
                case Assign(facts):
                    self._spawn(self._assign(effect), f"assign {facts.record.name}")
                case HandOver(facts):
                    self._spawn(self._hand_over(effect), f"hand over {facts.record.name}")
                case RemoveMember() | SetMinInsync():
                    self._change_ring(effect)

    def _ended(self, queue_id: str) -> None:
        self._perform(self._core.step(StepEnded(queue_id), now=self._now()))
        # A deadline may have been set that `run` doesn't wait for yet.
        self._wake.set()

    def _change_ring(self, step: RemoveMember | SetMinInsync) -> None:
        record = step.facts.record
        replica = self._hosting.replicas.get(record.id)
        if replica is not None:
            if isinstance(step, RemoveMember):
                logger.info("queue %s: %s is put out of the ring", record.name, step.member)
                replica.ring.remove(step.member)
            else:
                logger.info("queue %s: min_insync %d", record.name, step.count)
                replica.ring.set_min_insync(step.count)
        # From another turn of the loop on: the core is in the middle of a step.
        asyncio.get_running_loop().call_soon(self._ended, record.id)

    async def _hand_over(self, step: HandOver) -> None:
        record = step.facts.record
        replica = self._hosting.replicas.get(record.id)
        try:
            if replica is not None:
                await replica.ring.promote(step.target)
                logger.info("queue %s: handed over to %s", record.name, step.target)
        except (PromotionError, RingClosedError) as error:
            logger.info("queue %s: not handed over yet: %s", record.name, error)
        finally:
            self._ended(record.id)

    async def _assign(self, step: Assign) -> None:
        facts = step.facts
        try:
            async with self._commits:
                if await self._commit(step):
                    logger.info(
                        "queue %s: replicas on %s%s",
                        facts.record.name,
                        ", ".join(step.nodes),
                        f"; {', '.join(step.leaving)} to leave" if step.leaving else "",
                    )
        except RegistryError as error:
            # If it was carried out all the same, the watch will show it.
            logger.info("queue %s: replicas not changed yet: %s", facts.record.name, error)
        finally:
            self._ended(facts.record.id)

    async def _commit(self, step: Assign) -> bool:
        """Whether the record was changed. Guarded with what the step was judged by."""
        record, view = step.facts.record, step.facts.view
        entry = await self._registry.get(record.key)
        if entry is None:
            return False
        ring = await self._registry.get(ring_key(record.id))
        try:
            if decode_entry(entry.key, entry.value) != record:
                return False
            if ring is None or View.decode(ring.value).epoch != view.epoch:
                return False
        except (RecordError, ViewError):
            return False
        changed = record.with_replicas(step.nodes, step.leaving)
        revision = await self._registry.commit(
            # Else: 1. the view is judged, 2. it shrinks, 3. a replica that it has fallen back on
            # is deleted.
            [Guard(entry.key, entry.revision), Guard(ring.key, ring.revision)],
            [Put(entry.key, changed.encode())],
        )
        return revision is not None
