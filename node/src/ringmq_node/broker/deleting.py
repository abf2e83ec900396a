"""Deleting a queue only if it is empty, or unused: by its master, who knows that.

What was checked has to hold when the registry's commit takes effect:

* From the check on the queue takes no publishes and no consumers (`check_not_deleting`);
  they are told to try again.
* The commit is guarded with the revision of the ring's key. A master that was replaced
  without knowing it yet, or replaced and made master again, deletes nothing.
* If the commit's outcome is unknown it is repeated, with the same guards, until it is
  known; only then may the queue go on. The caller need not wait for that.

If it fails for sure the queue goes on; if it succeeds the queue's master ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringmq.v1 import common_pb2 as common
from ringmq_gm import View, ViewError, ring_key
from ringmq_gm.registry.base import CommitUnknownError, Delete, Guard, RegistryUnavailableError
from ringmq_node.broker.catalogue import registry_away
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import QueueRecord
from ringmq_node.queue.master import QueueMaster
from ringmq_node.replica.replica import Replica

if TYPE_CHECKING:
    from ringmq_node.node import Node

RETRY_S = 0.1


def check_not_deleting(replica: Replica) -> None:
    """Raises while it is not known whether the queue goes on."""
    if replica.master is not None and replica.master.deletions:
        raise BrokerError(
            common.REASON_DRAINING,
            f"queue {replica.record.name!r} is being deleted",
            queue=replica.record.name,
        )


async def delete_checked(node: Node, replica: Replica, check: Callable[[], None]) -> None:
    """Deletes the queue unless `check` raises. Raises `BrokerError` if it is not deleted;
    if the caller does not wait for the end, it may be."""
    master = replica.serving()
    check()
    master.deletions += 1
    ended: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    node.spawn(_carry_through(node, replica, master, ended), f"delete {replica.record.name}")
    refusal = await asyncio.shield(ended)
    if refusal is not None:
        raise refusal


async def _carry_through(
    node: Node, replica: Replica, master: QueueMaster, ended: asyncio.Future[BrokerError | None]
) -> None:
    try:
        await _delete_as_master(node, replica, master)
        ended.set_result(None)
    except BrokerError as refusal:
        master.deletions -= 1
        ended.set_result(refusal)
    finally:
        ended.cancel()


async def _delete_as_master(node: Node, replica: Replica, master: QueueMaster) -> None:
    record, registry = replica.record, node.registry
    unknown = False
    while True:
        try:
            ring = await registry.get(ring_key(record.id))
            entry = await registry.get(record.key)
            if entry is None or QueueRecord.decode(entry.value).id != record.id:
                await node.directory.wait_gone(record)
                return
            view = None if ring is None else View.decode(ring.value)
            if ring is None or view is None or view.master != node.me or replica.master != master:
                raise _not_master(record)
            # If it isn't, this node is about to hear of it.
            if view.epoch == replica.view.epoch:
                revision = await registry.commit(
                    [Guard(entry.key, entry.revision), Guard(ring.key, ring.revision)],
                    [Delete(entry.key), Delete(ring.key)],
                )
                if revision is not None:
                    await node.directory.wait_shown(revision)
                    return
        except ViewError as error:
            raise _not_master(record) from error
        except RegistryUnavailableError as error:
            if not unknown:
                raise registry_away() from error
        except CommitUnknownError:
            unknown = True
        await asyncio.sleep(RETRY_S)


def _not_master(record: QueueRecord) -> BrokerError:
    return BrokerError(
        common.REASON_NOT_MASTER,
        f"queue {record.name!r}: this node is not its master any more; nothing was deleted",
        queue=record.name,
    )
