"""Queues that have lost what they live by, and their deletion.

An *exclusive* queue lives no longer than the connection that declared it. An *auto-delete* queue
lives until its last consumer has left, once it has had one. Whoever ends either in good order has
its queues deleted at once. In all other cases a sweep finds them: every node looks, again and
again, at the queues that may be orphans, and deletes those of them that are its concern. So it
doesn't matter where a deletion was interrupted: the registry was away, the master died, the
connection's home died before it could delete anything.

What each node can tell of an exclusive queue's connection:

* this node is its home, and it isn't open: it is over;
* a later life of its home was seen: it is over, as a connection doesn't outlive its home's life;
* its home holds no lease, and no link with this node: it is *missed*. The home may be cut off, or
  the registry was away and leases have run out. After `grace_s` of that the connection counts as
  over. While this node itself isn't in touch with the registry, it misses nobody.

Of an auto-delete queue its master knows the consumers, and the replicated state says whether there
ever was one. A consumer that was lost without a word, or whose master died, may be on its way
back, so such a queue is missed for `grace_s`, too.

Whose concern a queue is: its connection's home, where that is up; else the queue's master; and of a
queue without a master that is up, the first node that is, by name. Two that delete the same queue
at once do no harm: a deletion is a commit that is guarded with the record that was judged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import Enum, auto

from ringmq_base.notifier import Notifier
from ringmq_gm import Group, MemberId, Role
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.connections import ClientConnection, Connections
from ringmq_node.broker.deleting import Deleting
from ringmq_node.broker.gate import NodeGate
from ringmq_node.model.connections import Owner, OwnerError
from ringmq_node.model.names import shown
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueRecord
from ringmq_node.replica.hosting import Hosting, Spawn
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.replica import Replica

logger = logging.getLogger(__name__)

# Between two looks.
SWEEP_S = 0.5
# Deletions on their way at a time: a connection may leave thousands of queues.
DELETIONS_MAX = 16


class Fate(Enum):
    """What a node knows of what a queue lives by."""

    HELD = auto()
    MISSED = auto()
    ORPHANED = auto()


class Missed:
    """Since when queues are missed. Pure."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since: dict[str, float] = {}

    def due(self, fates: Mapping[str, Fate], now: float) -> list[str]:
        """The queues to delete, by id. `fates` has all that are this node's concern; one that is
        missed has to be so at each look."""
        self._since = {
            queue_id: self._since.get(queue_id, now)
            for queue_id, fate in fates.items()
            if fate is Fate.MISSED
        }
        return [
            queue_id
            for queue_id, fate in fates.items()
            if fate is Fate.ORPHANED
            or (fate is Fate.MISSED and now >= self._since[queue_id] + self._grace_s)
        ]


class Orphans:
    """See the module. `run` sweeps until cancelled."""

    def __init__(
        self,
        catalogue: QueueCatalogue,
        cluster: Cluster,
        group: Group,
        hosting: Hosting,
        deleting: Deleting,
        connections: Connections,
        *,
        gate: NodeGate,
        spawn: Spawn,
        grace_s: float,
    ) -> None:
        self.connections = connections
        self._catalogue = catalogue
        self._cluster = cluster
        self._group = group
        self._hosting = hosting
        self._deleting = deleting
        self._gate = gate
        self._spawn = spawn
        self._missed = Missed(grace_s)
        self._limit = asyncio.Semaphore(DELETIONS_MAX)
        # Auto-delete queues that have had a consumer, by id, until the replicated state says so.
        self._in_use: set[str] = set()
        # Whether they could be deleted, of those that are being so, by id.
        self._going: dict[str, asyncio.Future[bool]] = {}
        self._changed = Notifier()

    # --- connections ---

    def open(self) -> ClientConnection:
        """A client's connection, which its door ends by `close` or `lose`. Raises `BrokerError`."""
        self._gate.check()
        return self.connections.open()

    async def close(self, connection: ClientConnection) -> None:
        """The client has ended its connection; returns when its queues are gone, or can't be
        deleted now."""
        self.connections.close(connection)
        owner = connection.owner.encode()
        await asyncio.gather(
            *(
                self._delete(record)
                for record in [*self._catalogue.dependent.values()]
                if record.owner == owner
            )
        )

    def lose(self, connection: ClientConnection) -> None:
        """The client has gone without a word."""
        self.connections.close(connection)
        self._changed.notify()

    # --- consumers (`ConsumersSeen`) ---

    def opened(self, mastership: Mastership) -> None:
        """Has the next master know that there was one."""
        record = self._auto_delete_of(mastership)
        if record is None or mastership.ended:
            return  # Its replica may have failed since the consumer was opened.
        if not self._hosting.replicas[record.id].store.state.used:
            self._in_use.add(record.id)
            self._note_use(record.id)

    def left(self, mastership: Mastership) -> None:
        """A consumer has left in good order. If it was the last one, an auto-delete queue goes."""
        record = self._auto_delete_of(mastership)
        if record is not None and not (mastership.ended or len(mastership.queue.consumers)):
            self._delete_soon(record)

    def _auto_delete_of(self, mastership: Mastership) -> QueueRecord | None:
        record = self._catalogue.dependent.get(mastership.name)
        is_meant = record is not None and record.auto_delete and record.id == mastership.queue_id
        return record if is_meant else None

    def _note_use(self, queue_id: str) -> None:
        replica = self._hosting.replicas.get(queue_id)
        if replica is None or replica.mastership is None or replica.store.state.used:
            self._in_use.discard(queue_id)
            return
        replica.remembering.note_use()

    # --- the sweep ---

    async def run(self) -> None:
        """Sweeps until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(SWEEP_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            if not self._gate.is_open:
                return
            for queue_id in [*self._in_use]:
                self._note_use(queue_id)
            records = {record.id: record for record in self._catalogue.dependent.values()}
            fates = {
                queue_id: fate
                for queue_id, record in records.items()
                if (fate := self._fate_here(record)) is not None
            }
            for queue_id in self._missed.due(fates, loop.time()):
                record = records[queue_id]
                if queue_id not in self._going:
                    self._delete_soon(record)

    def _fate_here(self, record: QueueRecord) -> Fate | None:
        """None if it isn't this node's concern."""
        replica = self._hosting.replicas.get(record.id)
        is_master = replica is not None and replica.ring.role is Role.MASTER
        fate = self.fate_of(record.owner) if record.owner else Fate.HELD
        if fate is Fate.ORPHANED or (
            fate is Fate.MISSED and (is_master or self._stands_in(record))
        ):
            return fate
        if record.auto_delete and replica is not None and is_master:
            return Fate.MISSED if self._is_unused(replica) else Fate.HELD
        return None

    def fate_of(self, owner: str) -> Fate:
        """Of the connection that an exclusive queue belongs to."""
        try:
            connection = Owner.decode(owner)
        except OwnerError:
            return Fate.ORPHANED
        home = MemberId(connection.node, connection.incarnation)
        if home == self._cluster.me:
            return Fate.ORPHANED if self.connections.is_over(connection) else Fate.HELD
        if self._group.known_incarnation(home.node) > home.incarnation:
            return Fate.ORPHANED
        if not self._cluster.registry_available or self._cluster.is_alive(home):
            return Fate.HELD
        return Fate.MISSED

    def _stands_in(self, record: QueueRecord) -> bool:
        """Whether no master of the queue is up, and this node is the first that is."""
        view = self._group.view(record.id)
        if view is not None and self._cluster.is_alive(view.master):
            return False
        return self._cluster.me.node == min(self._group.nodes(), default="")

    async def delete_if_gone(self, record: QueueRecord) -> bool:
        """Deletes an exclusive queue whose connection is over for certain; returns whether it
        did. Its namesake needn't wait for the sweep."""
        if not record.owner or self.fate_of(record.owner) is not Fate.ORPHANED:
            return False
        return await self._delete(record)

    def _delete_soon(self, record: QueueRecord) -> None:
        async def delete() -> None:
            await self._delete(record)

        self._spawn(delete(), f"orphan {record.name}")

    async def _delete(self, record: QueueRecord) -> bool:
        """Whether the queue is gone. If not, the sweep comes to it again."""
        going = self._going.get(record.id)
        if going is not None:
            return await asyncio.shield(going)
        going = self._going[record.id] = asyncio.get_running_loop().create_future()
        try:
            async with self._limit:
                await self._delete_now(record)
            going.set_result(True)
            return True
        except BrokerError as error:
            logger.info("queue %s: an orphan, not deleted yet: %s", shown(record.name), error)
            going.set_result(False)
            return False
        finally:
            del self._going[record.id]
            going.cancel()

    async def _delete_now(self, record: QueueRecord) -> None:
        """Raises `BrokerError` if the queue can't be deleted now."""
        present = self._catalogue.records.get(record.name)
        if present is None or present.id != record.id:
            return
        replica = self._hosting.replicas.get(record.id)
        if record.owner and self.fate_of(record.owner) is not Fate.HELD:
            await self._deleting.delete(record.name)
        elif replica is not None:
            await self._delete_unused(replica)
        logger.info("queue %s: an orphan, deleted", shown(record.name))

    async def _delete_unused(self, replica: Replica) -> None:
        def check() -> None:
            if not self._is_unused(replica):
                raise BrokerError(
                    Reason.QUEUE_IN_USE,
                    f"queue {shown(replica.record.name)!r} has a consumer again",
                    queue=replica.record.name,
                )

        await self._deleting.delete_if(replica, check)

    def _is_unused(self, replica: Replica) -> bool:
        """Whether the queue, whose master is here, has had consumers, and has none."""
        mastership = replica.mastership
        if mastership is None or len(mastership.queue.consumers):
            return False
        return replica.store.state.used or replica.record.id in self._in_use
