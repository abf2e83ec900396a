"""Creating queues, and changing their records: commits to the registry, then the watch."""

from __future__ import annotations

import random
from dataclasses import replace

from ringmq_gm import View, first_view, ring_key
from ringmq_gm.registry.base import (
    CommitUnknownError,
    Guard,
    Put,
    Registry,
    RegistryUnavailableError,
)
from ringmq_node.broker.arguments import QueueArguments, check_equivalent, check_possible
from ringmq_node.broker.catalogue import QueueCatalogue, registry_away
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.placement import place
from ringmq_node.broker.transient import TransientQueues
from ringmq_node.model.reasons import BrokerError, Reason, quarantined
from ringmq_node.model.records import (
    QueueMode,
    QueueRecord,
    RecordError,
    decode_entry,
    new_queue_id,
    queue_key,
)

# A commit that loses a race, or whose outcome is unknown, is tried again so often.
COMMIT_TRIES = 5


class Declaring:
    """Writes queue records. Each method raises `BrokerError`; the caller has the deadline."""

    def __init__(
        self,
        registry: Registry,
        catalogue: QueueCatalogue,
        settings: ClusterSettings,
        cluster: Cluster,
        transient: TransientQueues,
    ) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._settings = settings
        self._cluster = cluster
        self._transient = transient

    async def declare(self, name: str, arguments: QueueArguments) -> bool:
        """Creates the queue and its first ring in one commit; returns whether it is new.

        Returns once this node's watch has shown the queue.
        """
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._registry.get(queue_key(name))
                if entry is not None:
                    existing = decode_entry(entry.key, entry.value)
                    if not existing.durable and await self._transient.delete_if_gone(existing):
                        continue
                    check_equivalent(existing, self._settings.wanted_of(existing), arguments)
                    await self._catalogue.wait_present(name)
                    return False
                record, view = await self._new_record(name, arguments)
                revision = await self._registry.commit(
                    [Guard(record.key, 0)],
                    [Put(record.key, record.encode()), Put(ring_key(record.id), view.encode())],
                )
            except RecordError as error:
                raise quarantined(name, str(error)) from error
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                continue
            if revision is not None:
                # Waiting for the name would not do: the watch may still show a queue of this name
                # that was deleted before.
                await self._catalogue.wait_shown(revision)
                return True
        raise registry_away()

    async def _new_record(self, name: str, arguments: QueueArguments) -> tuple[QueueRecord, View]:
        alive = await self._cluster.registered_members()
        if self._cluster.me not in alive:
            # The registry was away for longer than the leases. Nodes are still registering again,
            # and a ring that is made now would leave them out for good.
            raise registry_away()
        fleet = self._cluster.fleet_of(alive, self._settings.nodes)
        check_possible(arguments, fleet.nodes)
        record = QueueRecord(
            name,
            new_queue_id(),
            (),
            arguments.min_insync,
            mode=arguments.mode or QueueMode.DEFAULT,
            durable=arguments.durable is not False,
            replicas=arguments.replicas,
            master_locator=arguments.master_locator,
        )
        wanted = self._settings.wanted_among(record, fleet.nodes)
        members = place(wanted, fleet, local=self._cluster.me.node, choice=random.choice)
        record = record.with_replicas(tuple(member.node for member in members), ())
        # With nodes that are down these may be fewer than `min_insync`. Then nothing is confirmed
        # before there are enough: a message would be on fewer disks than was asked for.
        return record, first_view(members, wanted.min_insync)

    async def set_mode(self, name: str, mode: QueueMode) -> QueueMode:
        """Changes the record; every replica hears of it through its node's watch.

        Returns the mode before, once the replica here has the new one.
        """
        record = self._catalogue.record_of(name)
        before: QueueMode | None = None
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._registry.get(record.key)
                existing = None if entry is None else decode_entry(entry.key, entry.value)
                if entry is None or existing is None or existing.id != record.id:
                    raise BrokerError(
                        Reason.QUEUE_NOT_FOUND, f"queue {name!r} was deleted", queue=name
                    )
                # If an earlier try has succeeded without an answer, the record has the new mode.
                before = before or existing.mode
                revision: int | None = entry.revision
                if existing.mode is not mode:
                    changed = replace(existing, mode=mode)
                    revision = await self._registry.commit(
                        [Guard(entry.key, entry.revision)], [Put(entry.key, changed.encode())]
                    )
            except RecordError as error:
                raise quarantined(name, str(error)) from error
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                continue
            if revision is not None:
                await self._catalogue.wait_revision(name, revision)
                return before
        raise registry_away()
