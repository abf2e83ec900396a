"""The nodes of a cluster, as the registry has them.

    nodes/<node>         leased: JSON {"incarnation": int, "address": "host:port", ...}
    incarnations/<node>  the last incarnation that was given out, decimal

A node's record is in `nodes/` while the node lives and can reach the registry. The other nodes
read there its address, in which of its lives it is, and whether its lease has run out. The same
JSON carries further facts that the node wants the others to know.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NodeRecordError(f"node {node!r}: not a record: {data[:80]!r}") from error
        if not isinstance(incarnation, int) or not isinstance(address, str):
            raise NodeRecordError(f"node {node!r}: not a record: {data[:80]!r}")
        return cls(node, incarnation, address, value)


async def next_incarnation(registry: Registry, node: str) -> int:
    """Gives out the next incarnation of `node`, from 1; never the same one twice.

    Raises `RegistryUnavailableError` if the registry doesn't answer. A number may be lost
    (the commit's answer didn't come), which does no harm.
    """
    key = INCARNATIONS + node
    while True:
        entry = await registry.get(key)
        incarnation = 1 if entry is None else int(entry.value) + 1
        guard = Guard(key, 0 if entry is None else entry.revision)
        try:
            revision = await registry.commit([guard], [Put(key, str(incarnation).encode())])
        except CommitUnknownError:
            continue
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
        self.registered = False
        # The first snapshot has been read.
        self.read = False
        self._registry = registry
        self._me = me
        self._lease_ttl_s = lease_ttl_s
        self._changed = changed

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
                await session.wait_lost()
                log.warning("%s: the registry session was lost; registering again", self._me.node)
            finally:
                self._set_registered(False)
                await _close(session)

    def _set_registered(self, registered: bool) -> None:
        self.registered = registered
        self._changed()

    async def _register(self) -> Session:
        """Opens a session and writes the record; one that fails leaves no session behind."""
        session = await self._registry.session(self._lease_ttl_s)
        try:
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
            self._ensure_newest(NodeRecord.decode(self._me.node, entry.value))
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
                        self.records = {}
                        for entry in snapshot.entries:
                            self._learn(entry)
                        self.read = True
                    case Changed(entry):
                        self._learn(entry)
                    case Removed(key):
                        self.records.pop(key.removeprefix(NODES), None)
            self._changed()

    def _learn(self, entry: KeyValue) -> None:
        record = NodeRecord.decode(entry.key.removeprefix(NODES), entry.value)
        if record.node == self._me.node:
            self._ensure_newest(record)
        self.records[record.node] = record


async def _close(session: Session) -> None:
    try:
        await session.close()
    except RegistryError as error:
        # The session ends by itself when its lease runs out.
        log.warning("the registry session could not be closed: %s", error)
