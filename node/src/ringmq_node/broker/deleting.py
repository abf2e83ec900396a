"""Deleting queues: unconditionally from any node, or by the master if a condition holds.

Only the master knows whether a queue is empty or unused. The condition that it has checked has to
hold when the registry's commit takes effect, so for a conditional delete:

* From the check on, the queue takes no publishes and no consumers; they are told to try again
  (`DeletionHolds`, enforced by `publishing` and `consuming` for every door). That holds also if the
  master loses contact with its ring meanwhile, and takes over again in the same view.
* The commit is guarded with the revision of the ring's key. A master that was replaced without
  knowing it yet, or replaced and made master again, deletes nothing.
* If the commit's outcome is unknown it is repeated with the same guards until it is known. Only
  then may the queue go on. The caller need not wait for that.

If the deletion fails for sure the queue goes on. If it succeeds the mastership ends with it.

A queue whose record can't be read is deleted by force alone. Nobody may know its id then, and the
view of its ring is left over. As long as every record can be read, a view that no record names is
of no queue, because record and view are made and deleted by one commit each. It is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from ringmq_gm import View, ViewError, ring_key
from ringmq_gm.registry.base import (
    CommitUnknownError,
    Delete,
    Guard,
    KeyValue,
    Registry,
    RegistryError,
    RegistryUnavailableError,
)
from ringmq_gm.registry_views import RINGS
from ringmq_node.broker.catalogue import REGISTRY_SHARE, QueueCatalogue, registry_away
from ringmq_node.broker.declaring import COMMIT_TRIES
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import (
    QUEUES,
    QueueRecord,
    RecordError,
    decode_entry,
    queue_key,
)
from ringmq_node.replica.deletion_holds import DeletionHold
from ringmq_node.replica.hosting import Spawn
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.replica import Replica

logger = logging.getLogger(__name__)

RETRY_S = 0.1


def check_not_deleting(mastership: Mastership) -> None:
    """Raises `BrokerError` while it isn't known whether the queue goes on."""
    if mastership.is_deleting:
        raise BrokerError(
            Reason.DRAINING,
            f"queue {mastership.name!r} is being deleted",
            queue=mastership.name,
        )


def check_conditions(mastership: Mastership, conditions: DeleteConditions) -> None:
    """Raises `BrokerError` unless the conditions of the delete hold."""
    messages, consumers = mastership.queue.messages, len(mastership.queue.consumers)
    if conditions.if_empty and messages:
        raise BrokerError(
            Reason.QUEUE_NOT_EMPTY,
            f"queue {mastership.name!r} has {messages} messages",
            queue=mastership.name,
            messages=messages,
        )
    if conditions.if_unused and consumers:
        raise BrokerError(
            Reason.QUEUE_IN_USE,
            f"queue {mastership.name!r} has {consumers} consumers",
            queue=mastership.name,
            consumers=consumers,
        )


class Deleting:
    """Deletes queues. Each method raises `BrokerError`; the caller has the deadline."""

    def __init__(self, registry: Registry, catalogue: QueueCatalogue, spawn: Spawn) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._spawn = spawn

    async def delete(self, name: str) -> None:
        """Removes the record and the ring; every node closes its replica on hearing of it."""
        record = self._catalogue.record_if_readable(name)
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._registry.get(queue_key(name))
                found = None if entry is None else _readable(entry)
                if record is not None and (
                    entry is None or (found is not None and found.id != record.id)
                ):
                    await self._catalogue.wait_gone(record)
                    return
                if entry is None:
                    return
                known = record or found
                ring = [] if known is None else [Delete(ring_key(known.id))]
                revision = await self._registry.commit(
                    [Guard(entry.key, entry.revision)], [Delete(entry.key), *ring]
                )
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError as error:
                raise BrokerError(
                    Reason.OUTCOME_UNKNOWN,
                    f"queue {name!r} may have been deleted",
                    queue=name,
                ) from error
            if revision is not None:
                # Waiting until the name is gone would not do: it may be declared again at once.
                await self._catalogue.wait_shown(revision)
                if known is None:
                    await self._remove_unnamed_rings()
                return
        raise registry_away()

    async def _remove_unnamed_rings(self) -> None:
        """Removes the views of rings that no queue's record names; see the module."""
        try:
            # In this order: a queue that is declared in between has its record in the second list.
            rings = (await self._registry.list(RINGS)).entries
            records = [_readable(entry) for entry in (await self._registry.list(QUEUES)).entries]
            named = {ring_key(record.id) for record in records if record is not None}
            if None in records:
                return
            for ring in rings:
                if ring.key not in named:
                    await self._registry.commit(
                        [Guard(ring.key, ring.revision)], [Delete(ring.key)]
                    )
                    logger.info("registry key %r, of no queue, was removed", ring.key)
        except RegistryError as error:
            # The queue is deleted. A view that stays harms nobody.
            logger.warning("views of rings without a queue may be left over: %s", error)

    async def delete_there(self, name: str, asked: Awaitable[int], deadline_s: float) -> int:
        """The answer of `asked`, by which the master's node deletes the queue, once the queue is
        gone from here as well: whoever asks this node next sees what it was told."""
        deadline = asyncio.get_running_loop().time() + deadline_s * REGISTRY_SHARE
        record = self._catalogue.record_if_readable(name)
        messages = await asked
        if record is not None:
            # However long this node's watch takes, the queue is deleted.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._catalogue.wait_gone(record)
        return messages

    async def delete_if(self, replica: Replica, check: Callable[[], None]) -> None:
        """Deletes the queue, whose master is here, unless `check` raises.

        Raises `BrokerError` if the queue wasn't deleted. A caller that stops waiting doesn't stop
        the deletion.
        """
        replica.serving()
        check()
        hold = replica.deletion_holds.begin()
        ended: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        self._spawn(self._carry_through(replica, hold, ended), f"delete {replica.record.name}")
        refusal = await asyncio.shield(ended)
        if refusal is not None:
            raise refusal

    def begin_deleting_unused(self, replica: Replica) -> None:
        """The queue, whose master is here, has been unused for as long as it may be."""
        self._spawn(self._delete_unused(replica), f"delete unused {replica.record.name}")

    async def _delete_unused(self, replica: Replica) -> None:
        def check() -> None:
            mastership = replica.serving()
            check_not_deleting(mastership)
            if not mastership.upkeep.is_unused:
                raise BrokerError(Reason.QUEUE_IN_USE, "it is used again")

        name = replica.record.name
        try:
            await self.delete_if(replica, check)
        except BrokerError as error:
            logger.debug("queue %s: unused, and not deleted yet: %s", name, error.message)
        else:
            logger.info("queue %s: deleted, as nobody has used it for its expires_ms", name)

    async def _carry_through(
        self,
        replica: Replica,
        hold: DeletionHold,
        ended: asyncio.Future[BrokerError | None],
    ) -> None:
        try:
            await self._delete_as_master(replica, hold)
            ended.set_result(None)
        except BrokerError as refusal:
            replica.deletion_holds.end(hold)
            ended.set_result(refusal)
        finally:
            ended.cancel()

    async def _delete_as_master(self, replica: Replica, hold: DeletionHold) -> None:
        record, registry = replica.record, self._registry
        unknown = False
        while True:
            try:
                ring = await registry.get(ring_key(record.id))
                entry = await registry.get(record.key)
                if entry is None or decode_entry(entry.key, entry.value).id != record.id:
                    await self._catalogue.wait_gone(record)
                    return
                view = None if ring is None else View.decode(ring.value)
                if ring is None or view is None or view.master != replica.ring.me:
                    raise _not_master(record)
                if hold not in replica.deletion_holds:
                    raise _not_master(record)
                # In another epoch this node is about to hear of it: look again then.
                if view.epoch == replica.view.epoch:
                    revision = await registry.commit(
                        [Guard(entry.key, entry.revision), Guard(ring.key, ring.revision)],
                        [Delete(entry.key), Delete(ring.key)],
                    )
                    if revision is not None:
                        await self._catalogue.wait_shown(revision)
                        return
            except (RecordError, ViewError) as error:
                raise _not_master(record) from error
            except RegistryUnavailableError as error:
                # After an unknown outcome "unavailable" proves nothing: the first commit may have
                # been carried out. Ask until the registry answers.
                if not unknown:
                    raise registry_away() from error
            except CommitUnknownError:
                unknown = True
            await asyncio.sleep(RETRY_S)


def _readable(entry: KeyValue) -> QueueRecord | None:
    try:
        return decode_entry(entry.key, entry.value)
    except RecordError:
        return None


def _not_master(record: QueueRecord) -> BrokerError:
    return BrokerError(
        Reason.NOT_MASTER,
        f"queue {record.name!r}: this node is not its master any more; nothing was deleted",
        queue=record.name,
    )
