"""Transient queues that nobody holds any more: how that is judged, and their deletion.

A transient queue lives in the memory of the nodes that hold it. As long as one synchronised
member of its ring lives, that member has everything. A node that is started again brings nothing
back, and fetches the messages from a member that lives. If no such member is left, the queue is
deleted, record and ring, and can be declared anew. The same holds for a life that has left the
ring and is still eligible (`View.eligible`): it has everything too, and may begin the ring again.

"No member is left" must never be said of a ring that merely can't be seen: the messages deleted
then are confirmed ones. So it is said only when, of every synchronised member of the view, a
*later life of its node* has been seen. A node has one life at a time: a later one holds the lock
of its data directory, and an earlier one stops when it hears of it. A member that doesn't answer,
or whose lease has run out, may live: it may be cut off, or the registry may have been away. The
queue then stays without a master until that node comes back, in its old life or in a new one.

The deletion guards ring and record with the revisions that were judged. If a living member has
formed a view meanwhile, the deletion fails. If the deletion is first, the view fails: its proposal
is a compare-and-set as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ringmq_gm import Group, Role, View, ViewError, ring_key
from ringmq_gm.registry.base import Delete, Guard, Registry, RegistryError
from ringmq_node.model.records import QueueRecord, RecordError, decode_entry
from ringmq_node.replica.hosting import Hosting

logger = logging.getLogger(__name__)

# Time between two looks for transient queues that nobody holds.
GONE_POLL_S = 0.5


def is_gone(view: View, incarnation_of: Callable[[str], int]) -> bool:
    """Whether every life that holds all the messages is an earlier one of its node: a
    synchronised member, or one that left when the ring could confirm nothing any more.

    `incarnation_of(node)` is the highest incarnation that was seen of a node, 0 if none was.
    """
    return all(incarnation_of(member.node) > member.incarnation for member in view.candidates)


class TransientQueues:
    """Deletes transient queues that nobody holds."""

    def __init__(self, registry: Registry, group: Group) -> None:
        self._registry = registry
        self._group = group

    async def run(self, hosting: Hosting) -> None:
        """Looks after the transient queues with a replica here, until cancelled."""
        while True:
            await asyncio.sleep(GONE_POLL_S)
            outside = [
                replica.record
                for replica in hosting.transient.values()
                if replica.ring.role is Role.OUTSIDE
            ]
            for record in outside:
                try:
                    await self.delete_if_gone(record)
                except RegistryError as error:
                    logger.info("queue %s: not deleted yet: %s", record.name, error)
                    break

    async def delete_if_gone(self, record: QueueRecord) -> bool:
        """Deletes a transient queue that nobody holds; returns whether it did.

        Raises `RegistryError`.
        """
        known = self._group.view(record.id)
        if known is None or not is_gone(known, self._group.known_incarnation):
            return False
        ring = await self._registry.get(ring_key(record.id))
        entry = await self._registry.get(record.key)
        if ring is None or entry is None:
            return False
        try:
            if decode_entry(entry.key, entry.value).id != record.id:
                return False
            # The view that this node knew may be old: a member may have joined and synchronised.
            view = View.decode(ring.value)
        except (RecordError, ViewError):
            return False  # Quarantined: an operator decides.
        if not is_gone(view, self._group.known_incarnation):
            return False
        revision = await self._registry.commit(
            [Guard(ring.key, ring.revision), Guard(entry.key, entry.revision)],
            [Delete(entry.key), Delete(ring.key)],
        )
        if revision is None:
            return False
        logger.warning(
            "queue %s: transient, and %s are gone: deleted",
            record.name,
            [*map(str, view.candidates)],
        )
        return True
