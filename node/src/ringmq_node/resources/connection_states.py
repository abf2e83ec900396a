"""The connections that have streams at this node, and whether their publishers are held. Pure.

A connection is `BLOCKED` while an alarm holds a publisher of it, and `BLOCKING` if an alarm will
hold the next publish. It is in `FLOW` from the first batch that is held for another reason on, and
for `LINGER_S` behind the last, as RabbitMQ shows it: busy clusters hold batches for milliseconds
all the time, and who looks now and then would see that by luck alone. Else it is `RUNNING`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringmq_node.model.flow import ALARMS, BlockReason
from ringmq_node.model.info import ConnectionCondition, ConnectionInfo
from ringmq_node.resources.flow import Reasons

LINGER_S = 5.0


class _Peer:
    """One connection."""

    __slots__ = ("consumers", "ended_at", "held", "publishers", "reasons", "streams")

    def __init__(self) -> None:
        self.streams = self.publishers = self.consumers = 0
        # The streams whose batches are held, and why.
        self.held: dict[PeerStream, Reasons] = {}
        # Why the last one was held, and until when.
        self.reasons: Reasons = ()
        self.ended_at = float("-inf")


class PeerStream:
    """One stream of a connection. Its reasons may change while it is held."""

    __slots__ = ("_clock", "_peer")

    def __init__(self, peer: _Peer, clock: Callable[[], float]) -> None:
        self._peer = peer
        self._clock = clock

    def hold(self, reasons: Reasons) -> None:
        self._peer.held[self] = self._peer.reasons = reasons

    def release(self) -> None:
        """Idempotent."""
        if self._peer.held.pop(self, None) is not None:
            self._peer.ended_at = self._clock()


class ConnectionStates:
    """Of one node. `alarms`: of any node."""

    def __init__(
        self, node: str, clock: Callable[[], float], alarms: Callable[[], frozenset[BlockReason]]
    ) -> None:
        self._node = node
        self._clock = clock
        self._alarms = alarms
        # By the other end's address, and whether that is a node.
        self._peers: dict[tuple[str, bool], _Peer] = {}

    @contextmanager
    def stream(
        self,
        address: str,
        *,
        relayed: bool = False,
        publishes: bool = False,
        consumes: bool = False,
    ) -> Iterator[PeerStream]:
        """The connection has this stream for as long as the block lasts."""
        key = address, relayed
        peer = self._peers.setdefault(key, _Peer())
        peer.streams += 1
        peer.publishers += publishes
        peer.consumers += consumes
        stream = PeerStream(peer, self._clock)
        try:
            yield stream
        finally:
            stream.release()
            peer.streams -= 1
            peer.publishers -= publishes
            peer.consumers -= consumes
            if not peer.streams:
                del self._peers[key]

    def infos(self, after: str, count: int) -> list[ConnectionInfo]:
        """The first `count` whose keys are above `after`, in order."""
        keys = ((place_of(self._node, *key), key) for key in self._peers)
        first = heapq.nsmallest(count, (each for each in keys if each[0] > after))
        return [self._info(*key) for _, key in first]

    def _info(self, address: str, relayed: bool) -> ConnectionInfo:
        peer = self._peers[address, relayed]
        condition, reasons = self._state(peer)
        return ConnectionInfo(
            node=self._node,
            peer=address,
            condition=condition,
            flow_reasons=tuple(sorted(reasons, key=lambda reason: reason.value)),
            publishers=peer.publishers,
            consumers=peer.consumers,
            relayed=relayed,
        )

    def _state(self, peer: _Peer) -> tuple[ConnectionCondition, frozenset[BlockReason]]:
        held_by = frozenset(reason for reasons in peer.held.values() for reason in reasons)
        alarms = self._alarms()
        if held_by & ALARMS:
            return ConnectionCondition.BLOCKED, held_by & ALARMS
        if alarms and peer.publishers:
            return ConnectionCondition.BLOCKING, alarms
        if peer.held or self._clock() < peer.ended_at + LINGER_S:
            return ConnectionCondition.FLOW, held_by or frozenset(peer.reasons)
        return ConnectionCondition.RUNNING, frozenset()


def place_of(node: str, address: str, relayed: bool) -> str:
    """Connections are listed in this order."""
    return f"{node} {address} {'relayed' if relayed else ''}"
