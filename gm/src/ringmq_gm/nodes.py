"""The nodes of a cluster, as the registry has them.

    nodes/<node>         leased: JSON {"incarnation": int, "address": "host:port", ...}
    incarnations/<node>  the last incarnation that was given out, decimal

A node's record is in `nodes/` while the node lives and can reach the registry. The other nodes
read there its address, in which of its lives it is, and whether its lease has run out. The same
JSON carries further facts that the node wants the others to know.

A record that can't be read ends no node. A node writes its own record again; of another node the
last good record counts on, or none. `LiveNodes.unreadable` and the log (once) say which.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from ringmq_gm.core.views import MemberId
from ringmq_gm.errors import SupersededError
from ringmq_gm.registry.base import (
    Changed,
    CommitUnknownError,
    Guard,
    KeyValue,
    Put,
    Registry,
    RegistryError,
    RegistryUnavailableError,
    Removed,
    Reset,
    Session,
    SessionLostError,
)

log = logging.getLogger(__name__)

NODES = "nodes/"
INCARNATIONS = "incarnations/"
# The pause between two tries to register while the registry doesn't answer.
_PAUSE_S_MAX = 1.0
_TRANSIENT = (RegistryUnavailableError, CommitUnknownError, SessionLostError)


class NodeRecordError(ValueError):
    """These bytes are not a node's record."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node's own description. The group doesn't look into `extra`, which is JSON."""

    node: str
    incarnation: int
    address: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def member_id(self) -> MemberId:
        return MemberId(self.node, self.incarnation)

    def encode(self) -> bytes:
        value = {**self.extra, "incarnation": self.incarnation, "address": self.address}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, node: str, data: bytes) -> Self:
        try:
            value = json.loads(data)
            incarnation, address = value.pop("incarnation"), value.pop("address")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NodeRecordError(f"node {node!r}: not a record: {data[:80]!r}") from error
        # Not `isinstance`: for Python a bool is an int.
        if type(incarnation) is not int or type(address) is not str:
            raise NodeRecordError(f"node {node!r}: not a record: {data[:80]!r}")
        return cls(node, incarnation, address, value)


async def next_incarnation(registry: Registry, node: str) -> int:
    """Gives out the next incarnation of `node`, from 1; never the same one twice.

    Raises `RegistryUnavailableError` if the registry doesn't answer, `CommitUnknownError` if it may
    have given one out, and `NodeRecordError` if the last number can't be read: to begin anew would
    give a life's number to another one. A number that is lost does no harm: ask again.
    """
    key = INCARNATIONS + node
    while True:
        entry = await registry.get(key)
        try:
            incarnation = 1 if entry is None else int(entry.value) + 1
        except ValueError as error:
            raise NodeRecordError(f"registry key {key!r}: not a number: {entry!r}") from error
        guard = Guard(key, 0 if entry is None else entry.revision)
        revision = await registry.commit([guard], [Put(key, str(incarnation).encode())])
        if revision is not None:
            return incarnation


class LiveNodes:
    """Keeps this node among the live ones, and knows the others."""

    def __init__(
        self,
        registry: Registry,
        me: NodeRecord,
        *,
        lease_ttl_s: float,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after each change of `records` or `registered`."""
        self.records: dict[str, NodeRecord] = {}
        # Why a node's record can't be read, by node.
        self.unreadable: dict[str, str] = {}
        self.registered = False
        # The first snapshot has been read.
        self.read = False
        self._registry = registry
        self._me = me
        self._lease_ttl_s = lease_ttl_s
        self._changed = changed
        # Set when this node's own record has to be written again.
        self._damaged = asyncio.Event()
        # Set when the registry has an older description of this node.
        self._outdated = asyncio.Event()

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Changes these values of `extra` in this node's record."""
        extra = {**self._me.extra, **facts}
        if extra != self._me.extra:
            self._me = replace(self._me, extra=extra)
            self._outdated.set()

    async def run(self) -> None:
        """Until cancelled. Raises `SupersededError` if a later life of this node is there."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_registered(), name="registration")
            tasks.create_task(self._watch(), name="watch of nodes/")

    async def _keep_registered(self) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_TRANSIENT),
            wait=wait_random_exponential(multiplier=0.05, max=_PAUSE_S_MAX),
        )
        while True:
            session: Session = await retrying(self._register)
            try:
                self._set_registered(True)
                await self._wait_unregistered(session)
            finally:
                self._set_registered(False)
                await _close(session)

    async def _wait_unregistered(self, session: Session) -> None:
        """Returns when the record has to be written again."""
        while not session.lost:
            self._damaged.clear()
            waits = [
                asyncio.ensure_future(wait)
                for wait in (session.wait_lost(), self._damaged.wait(), self._outdated.wait())
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if self._outdated.is_set() and not session.lost:
                await self._update(session)
            # The watch is late: it may show the end of the session before this one.
            if self._damaged.is_set() and not await self._is_recorded():
                log.warning("%s: its record is damaged or gone; writing it again", self._me.node)
                return
        log.warning("%s: the registry session was lost; registering again", self._me.node)

    async def _update(self, session: Session) -> None:
        """Writes the record again under the lease that it has, which must not lapse for this."""
        self._outdated.clear()
        try:
            if await self._write(session):
                return
        except _TRANSIENT:
            pass
        self._outdated.set()
        await asyncio.sleep(_PAUSE_S_MAX)

    async def _is_recorded(self) -> bool:
        """Whether the registry has this life's record. False as well if it doesn't answer."""
        try:
            entry = await self._registry.get(NODES + self._me.node)
            return entry is not None and entry.value == self._me.encode()
        except RegistryError:
            return False

    def _set_registered(self, registered: bool) -> None:
        self.registered = registered
        self._changed()

    async def _register(self) -> Session:
        """Opens a session and writes the record; one that fails leaves no session behind."""
        session = await self._registry.session(self._lease_ttl_s)
        try:
            self._outdated.clear()
            while not await self._write(session):
                continue
        except BaseException:
            await _close(session)
            raise
        return session

    async def _write(self, session: Session) -> bool:
        """Whether it was written. If not, the key was written by another process meanwhile."""
        key = NODES + self._me.node
        entry = await self._registry.get(key)
        if entry is not None:
            try:
                self._ensure_newest(NodeRecord.decode(self._me.node, entry.value))
            except NodeRecordError as error:
                # Nobody else may have this name: `next_incarnation` and the data directory saw to
                # that. So this record is ours, and is put right.
                log.warning("%s: writes its record again: %s", self._me.node, error)
        guard = Guard(key, 0 if entry is None else entry.revision)
        put = Put(key, self._me.encode(), leased=True)
        return await self._registry.commit([guard], [put], session=session) is not None

    def _ensure_newest(self, other: NodeRecord) -> None:
        if other.incarnation > self._me.incarnation:
            raise SupersededError(
                f"node {self._me.node!r}: incarnation {other.incarnation} has registered from"
                f" {other.address}; this is {self._me.incarnation}, and must stop"
            )

    async def _watch(self) -> None:
        async for changes in self._registry.watch(NODES):
            for change in changes:
                match change:
                    case Reset(snapshot):
                        before, self.records = self.records, {}
                        self._forget_unreadable(snapshot.entries)
                        for entry in snapshot.entries:
                            self._learn(entry, before)
                        self.read = True
                        if self._me.node not in self.records:
                            self._damaged.set()
                    case Changed(entry):
                        self._learn(entry, self.records)
                    case Removed(key):
                        self.records.pop(key.removeprefix(NODES), None)
                        self.unreadable.pop(key.removeprefix(NODES), None)
                        if key == NODES + self._me.node:
                            self._damaged.set()
            self._changed()

    def _forget_unreadable(self, entries: Sequence[KeyValue]) -> None:
        present = {entry.key.removeprefix(NODES) for entry in entries}
        for node in [node for node in self.unreadable if node not in present]:
            del self.unreadable[node]

    def _learn(self, entry: KeyValue, before: Mapping[str, NodeRecord]) -> None:
        node = entry.key.removeprefix(NODES)
        try:
            record = NodeRecord.decode(node, entry.value)
        except NodeRecordError as error:
            self._learn_unreadable(node, f"registry key {entry.key!r}: {error}")
            if node in before:
                # Its address still holds as far as anybody knows, and its lease hasn't run out.
                self.records[node] = before[node]
            return
        if self.unreadable.pop(node, None) is not None:
            log.info("node %r: its record in the registry can be read again", node)
        if record.node == self._me.node:
            self._ensure_newest(record)
        self.records[record.node] = record

    def _learn_unreadable(self, node: str, reason: str) -> None:
        if self.unreadable.get(node) != reason:
            log.error("node %r: its record in the registry can't be read: %s", node, reason)
        self.unreadable[node] = reason
        if node == self._me.node:
            self._damaged.set()


async def _close(session: Session) -> None:
    try:
        await session.close()
    except RegistryError as error:
        # The session ends by itself when its lease runs out.
        log.warning("the registry session could not be closed: %s", error)
