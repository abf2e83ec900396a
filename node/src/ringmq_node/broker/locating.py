"""Which node is a queue's master, and whether a call is served here or forwarded there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ringmq_gm import Group, MemberId, Refusal, View
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.gate import NodeGate
from ringmq_node.model.reasons import BrokerError, Reason, quarantined
from ringmq_node.model.records import check_queue_name
from ringmq_node.replica.hosting import Hosting
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.replica import Replica

# How long a call waits for a master here that is just taking over.
SERVING_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Location:
    """A queue's master: its node, the address of that node, and the epoch of the view."""

    node: str
    address: str
    epoch: int


# Of no master that this node knows.
NOWHERE = Location("", "", 0)


class Locator:
    """See the module. Each method raises `BrokerError`."""

    def __init__(
        self,
        catalogue: QueueCatalogue,
        cluster: Cluster,
        group: Group,
        hosting: Hosting,
        gate: NodeGate,
    ) -> None:
        self._catalogue = catalogue
        self._cluster = cluster
        self._group = group
        self._hosting = hosting
        self._gate = gate

    def view_of(self, queue: str) -> View:
        """The newest view that this node knows: a replica here may know it before the watch."""
        record = self._catalogue.record_of(queue)
        replica = self._hosting.replicas.get(record.id)
        known = [
            view
            for view in (
                self._group.view(record.id),
                replica.ring.view if replica is not None else None,
            )
            if view is not None
        ]
        unreadable = self._group.unreadable_views().get(record.id)
        if not known and unreadable is not None:
            raise quarantined(queue, unreadable)
        if not known:
            raise BrokerError(Reason.NO_MASTER, f"queue {queue!r} has no ring yet", queue=queue)
        return max(known, key=lambda view: view.epoch)

    def master_of(self, queue: str) -> MemberId:
        """The master in the newest view, if that life of its node is still up."""
        master = self.view_of(queue).master
        if master != self._cluster.me and not self._cluster.is_alive(master):
            raise BrokerError(
                Reason.NO_MASTER,
                f"queue {queue!r}: {self._gone(master)}",
                queue=queue,
            )
        if master == self._cluster.me:
            self._check_contact(queue)
        return master

    def _gone(self, master: MemberId) -> str:
        """What has become of a master whose life is over: its node may have begun another."""
        life = self._cluster.life_of(master.node)
        if life is None or life == master:
            return f"its master {master} is down"
        return (
            f"its last master {master} is gone, and no other has begun; "
            f"node {master.node} is up again, as {life}"
        )

    def _check_contact(self, queue: str) -> None:
        """Raises while this node hears too few replicas to be sure that it is the master: its own
        view must not send clients here, who may reach the next master."""
        replica = self._hosting.replicas.get(self._catalogue.record_of(queue).id)
        if replica is not None and replica.ring.refusal() is Refusal.OUT_OF_CONTACT:
            raise BrokerError(
                Reason.NO_MASTER,
                f"queue {queue!r}: {self._cluster.me} was its master, and hears too few of its "
                "replicas",
                queue=queue,
            )

    def locate(self, queue: str) -> Location:
        master = self.master_of(queue)
        return Location(master.node, self._cluster.address_of(master), self.view_of(queue).epoch)

    def successor(self, queue: str) -> Location:
        """The master for a session that has to move; `NOWHERE` if it is unknown."""
        try:
            location = self.locate(queue)
        except BrokerError:
            return NOWHERE
        if location.node == self._cluster.me.node and not self._gate.is_open:
            # This node has left its rings and hears no more of them: the view is out of date.
            return NOWHERE
        return location

    async def route(self, queue: str, *, forwarded: bool) -> str:
        """The address of the master's node; empty if that is this node.

        `forwarded`: another node has sent the call here, so it may not be sent on.
        """
        check_queue_name(queue)
        await self._catalogue.ensure_known(queue)
        master = self.master_of(queue)
        if master == self._cluster.me:
            return ""
        if forwarded:
            raise BrokerError(
                Reason.NOT_MASTER,
                f"queue {queue!r}: the master is {master}, not {self._cluster.me}",
                queue=queue,
                master=self._cluster.address_of(master),
            )
        return self._cluster.address_of(master)

    async def look_up(self, queues: Sequence[str]) -> None:
        """Returns when this node has heard of those of them that exist. Raises `BrokerError`."""
        await self._catalogue.ensure_all_known(queues)

    async def wait_moved(self, queue: str, address: str) -> None:
        """Returns when the queue's master isn't at `address` any more, as far as this node knows.

        A stream that is relayed there hears so from its old master itself, unless that one is cut
        off: then nobody else would tell the client.
        """
        record = self._catalogue.records.get(queue)
        while record is not None:
            view = self._group.view(record.id)
            if view is None or self._group.address_of(view.master) != address:
                return
            await self._group.wait_view(record.id)

    def replica_of(self, queue: str) -> Replica:
        """This node's replica."""
        return self._hosting.replica_of(self._catalogue.record_of(queue))

    async def serving(self, queue: str) -> Mastership:
        """The mastership here, waiting for one that is being taken over."""
        replica = self.replica_of(queue)
        # If the time runs out, the check below says why; "no answer in time" would not.
        with suppress(TimeoutError):
            async with asyncio.timeout(SERVING_WAIT_S):
                await replica.wait_serving()
        return replica.serving()
