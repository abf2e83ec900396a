"""Which nodes are short of memory or disk. While one is, publishers are held on every node.

A queue's messages go to all members of its ring, so a publisher anywhere may fill the disk of the
node that is short. Consumers, acks, gets and deletes go on: they make room.

A node tells its alarms by two ways. A link brings a notice, one byte, at once and with each
heartbeat: so every node that shares a ring with the short one hears of it without the registry. The
node's leased record in the registry reaches all others. Either ends with the node: a link that is
down has no notice, and a record goes with its lease. A node that the registry doesn't answer looks
at notices alone, as the records that it knows may be old: an alarm that nobody can take back would
hold its publishers for as long as the registry is away.

An alarm counts while either way says so. A node whose store has failed has left its rings, and with
its links and its record its alarms have ended for the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ringmq_node.model.flow import BlockReason
from ringmq_node.resources import Alarm

logger = logging.getLogger(__name__)

LOOK_S = 1.0
# In a node's record.
KEY = "alarms"
BLOCKING = {Alarm.MEMORY: BlockReason.MEMORY, Alarm.DISK: BlockReason.DISK}
# In a link's notice. Numbers of the wire: never given to another alarm.
BITS = {BlockReason.MEMORY: 1, BlockReason.DISK: 2}
NAMES = {reason.name.lower(): reason for reason in BITS}

Alarms = frozenset[BlockReason]


class Record(Protocol):
    @property
    def extra(self) -> Mapping[str, Any]: ...


class Neighbours(Protocol):
    """The group, as far as alarms need it."""

    @property
    def registry_available(self) -> bool: ...

    def nodes(self) -> Mapping[str, Record]: ...
    def notices(self) -> Mapping[str, int]: ...
    def set_notice(self, notice: int) -> None: ...
    def describe(self, **facts: Any) -> None: ...


class ClusterAlarms:
    """See the module. `changed` is called with the reasons that hold publishers, when they change.

    `learn` is to be called when the group's notices or records may have changed.
    """

    def __init__(self, node: str, group: Neighbours, *, changed: Callable[[Alarms], None]) -> None:
        self._node = node
        self._group = group
        self._changed = changed
        self._own: Alarms = frozenset()
        # By node, its own alarms included. Nodes without an alarm aren't in it.
        self.raised: dict[str, Alarms] = {}

    @property
    def reasons(self) -> Alarms:
        return frozenset().union(*self.raised.values())

    def set_own(self, kind: Alarm, on: bool) -> None:
        reason = BLOCKING.get(kind)
        if reason is None:
            return
        self._own = self._own | {reason} if on else self._own - {reason}
        self._group.set_notice(sum(BITS[each] for each in self._own))
        self._group.describe(**{KEY: sorted(each.name.lower() for each in self._own)})
        self.learn()

    def learn(self) -> None:
        before, reasons = self.raised, self.reasons
        found = {node: _of_notice(notice) for node, notice in self._group.notices().items()}
        if self._group.registry_available:
            for node, record in self._group.nodes().items():
                found[node] = found.get(node, frozenset()) | _of_record(record)
        found[self._node] = self._own
        self.raised = {node: alarms for node, alarms in sorted(found.items()) if alarms}
        if self.raised != before:
            self._log()
        if self.reasons != reasons:
            self._changed(self.reasons)

    async def watch(self) -> None:
        """Until cancelled: that the registry has gone away is no event."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.learn()

    def _log(self) -> None:
        if not self.raised:
            logger.info("publishers go on: no node has an alarm")
            return
        told = "; ".join(
            f"{node}: {', '.join(sorted(reason.text for reason in alarms))}"
            for node, alarms in self.raised.items()
        )
        logger.warning("publishers are blocked on all nodes by alarms (%s)", told)


def _of_notice(notice: int) -> Alarms:
    return frozenset(reason for reason, bit in BITS.items() if notice & bit)


def _of_record(record: Record) -> Alarms:
    """Of a node that says it in another way than this one does: none."""
    names = record.extra.get(KEY)
    if not isinstance(names, list):
        return frozenset()
    return frozenset(NAMES[name] for name in names if isinstance(name, str) and name in NAMES)
