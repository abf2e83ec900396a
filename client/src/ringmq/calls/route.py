"""Where the next stream for one queue should go.

A stream wants the queue's master. If the master's address can't be reached from here, any other
node takes the stream as a relay.
"""

from __future__ import annotations

import time

from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.model.queues import Location
from ringmq.v1 import broker_pb2 as broker

#: Of one node that is asked for the master.
ATTEMPT_S = 1.0
#: A node that takes longer may be stopped, as the last master may be: all others are asked, too.
PATIENCE_S = 0.25
#: So long an address at which a stream failed is passed over, though streams work elsewhere.
AVOIDED_S = 10.0


class Route:
    """One per kept stream: it remembers where the streams before have failed."""

    def __init__(self, nodes: KnownNodes, queue: str, vhost: str = "") -> None:
        self._nodes = nodes
        self._queue = queue
        self._vhost = vhost or nodes.vhost
        self._hint = ""
        # The master there and the epoch of its view, if the node told them.
        self._hinted: tuple[str, int] | None = None
        # Addresses at which a stream failed, and when, as of `time.monotonic`.
        self._failed: dict[str, float] = {}
        # The node that was picked last to pass a stream on; empty: the master was picked.
        self._relay = ""
        # The master that `newer_master` found last.
        self._newer: Location | None = None
        #: The master that the stream which was picked last is to reach, and the epoch of its view.
        #: None where nobody was asked, and the node whose hint is followed didn't tell the epoch.
        self.sought: tuple[str, int] | None = None

    def moved(self, address: str, master: tuple[str, int] | None = None) -> None:
        """A node said where the master is; empty: it doesn't know. `master`: which one, and the
        epoch of its view."""
        self._hint, self._hinted = address, master

    def failed(self, address: str, *, answered: bool = False) -> None:
        """`answered`: it has refused, with a reason. A master that does can be reached, and is
        asked again when it may take the stream: a relay may be cut off from it, and not say so."""
        if not answered or address == self._relay:
            self._failed[address] = time.monotonic()
        # Else it might be the one that answers where the master is, and so the relay to itself.
        self._nodes.ask_last(address)

    def worked(self) -> None:
        """The stream that was picked last was of use. Of a relay's, that tells nothing about the
        way to the master itself: its next stream would wait there for a connection first."""
        if self._relay:
            self._failed.pop(self._relay, None)
        else:
            self._failed.clear()

    async def pick(self, deadline_s: float) -> NodeChannel:
        """The master; else, if that has failed, the node that told us of it, as a relay."""
        now = time.monotonic()
        self._failed = {a: at for a, at in self._failed.items() if now < at + AVOIDED_S}
        hint, self._hint = self._hint, ""
        self._relay, self.sought = "", None
        if hint and hint not in self._failed:
            self._nodes.learn([hint])
            # It may have been followed as well: the stream there asks again while it waits.
            self.sought = self._hinted
            if self.sought is None and self._newer is not None and self._newer.address == hint:
                self.sought = self._newer.node, self._newer.epoch
            return self._nodes.channel(hint)
        location, relay = await self._locate(deadline_s)
        self.sought = location.node, location.epoch
        self._nodes.learn([location.address])
        if location.address and location.address not in self._failed:
            return self._nodes.channel(location.address)
        if relay.address in self._failed:
            # Both have failed: begin again with the master.
            self._failed.clear()
        self._relay = relay.address
        return relay

    async def newer_master(self, node: str, epoch: int) -> str:
        """The address of the master that has followed `node`, master in `epoch`; empty if none is
        known to any node.

        The master itself may not know: it may be cut off from the cluster, and not from here.
        """

        def follows(found: tuple[Location, NodeChannel]) -> bool:
            return found[0].epoch > epoch and found[0].node != node

        found = await self._nodes.ask_all(self._ask, timeout_s=ATTEMPT_S, enough=follows)
        newest = max((location for location, _ in found), key=lambda each: each.epoch, default=None)
        if newest is None or newest.epoch <= epoch or newest.node == node:
            return ""
        self._newer = newest
        return newest.address

    async def _ask(self, node: NodeChannel, timeout_s: float) -> tuple[Location, NodeChannel]:
        request = request_of(broker.LocateQueueRequest, vhost=self._vhost, queue=self._queue)
        answer = await node.broker.LocateQueue(request, timeout=timeout_s)
        return Location(answer.node, answer.address, answer.epoch), node

    async def _locate(self, deadline_s: float) -> tuple[Location, NodeChannel]:
        # The keeper waits for a master's successor; meanwhile its user gets the reason.
        return await self._nodes.call(
            self._ask,
            deadline_s=deadline_s,
            attempt_s=ATTEMPT_S,
            patience_s=PATIENCE_S,
            successor_s=0.0,
        )


class AnyNode(Route):
    """A stream that any node serves: that of a publisher to an exchange."""

    def __init__(self, nodes: KnownNodes) -> None:
        super().__init__(nodes, "")

    async def pick(self, deadline_s: float) -> NodeChannel:
        return self._nodes.next_one()

    async def newer_master(self, node: str, epoch: int) -> str:
        return ""
