"""Which cluster this is, whether this node's name is its own, and whether its disk is.

The registry remembers, under a key that no lease removes, the identity of each node's disk and the
last life that has used it (`storage.disk.life` has the copy on the disk). A node whose disk doesn't
match has lost messages that it has confirmed, or may have. `judge_disk` tells the cases apart.

A trusted disk's new life is recorded on the disk and in the registry *before* the node joins a
ring. Otherwise a copy taken of the life before could pass for this one. An untrusted disk is
recorded only *after* each of its replicas is marked as partial. Otherwise a crash in between
would leave a disk that is trusted and replicas that look whole.

Not noticed: a disk that is put back to an earlier moment of the very life that used it last. The
ring guards against that: it needs `min_insync` whole replicas to begin again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Self, TypeVar

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from ringmq_gm.nodes import NODES, NodeRecord, NodeRecordError
from ringmq_gm.registry.base import (
    Change,
    Changed,
    CommitUnknownError,
    Guard,
    KeyValue,
    Put,
    Registry,
    RegistryError,
    RegistryUnavailableError,
    RegistryWentBackError,
    Removed,
    Reset,
)
from ringmq_node.config import NodeConfig
from ringmq_node.errors import StartError
from ringmq_node.storage import Store, StoreLife
from ringmq_node.storage.disk.life import read_life, write_life

CLUSTER_KEY = "cluster"
SECRET_KEY = "secret"
# How long the lease of a node of the same name is waited for, in leases of ours.
LEASES_WAITED = 1.5
# A commit whose answer is lost, or that another process has overtaken, is tried again so often.
RECORD_TRIES = 5
# For so long a registry that doesn't answer is asked again: etcd may be starting beside this node,
# and a SQLite file be locked by the start of other nodes.
REGISTRY_WAIT_S = 30.0
STORES = "stores/"

T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """`ask` until the registry answers, for `REGISTRY_WAIT_S`; then its last error is raised. What
    asks for a commit looks first whether an earlier one, without an answer, was carried out.

    A call that is under way is not cut off: the registry bounds its own calls.
    """
    retrying = AsyncRetrying(
        retry=retry_if_exception_type((RegistryUnavailableError, CommitUnknownError))
        & retry_if_not_exception_type(RegistryWentBackError),
        stop=stop_after_delay(REGISTRY_WAIT_S),
        wait=wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )

    async def asked() -> T:
        return await ask()

    return await retrying(asked)


class DiskStanding(Enum):
    """How a node's disk compares with the registry's record. The value is for the log."""

    NEW = "new to the cluster"
    SAME = "the one that this node used last"
    LOST = "not the one that this node used last: that one was lost or replaced"
    RESTORED = "older than this node's last life: it was restored from a copy"

    @property
    def is_trusted(self) -> bool:
        """Whether every message that this node has confirmed is on the disk."""
        return self in (DiskStanding.NEW, DiskStanding.SAME)


def judge_disk(own: StoreLife | None, registered: StoreLife | None) -> DiskStanding:
    """Pure. `own` is read from the disk, `registered` from the registry."""
    if registered is None:
        return DiskStanding.NEW
    if own is None or own.identity != registered.identity:
        return DiskStanding.LOST
    # The disk is written first: it may be ahead of the registry by a life that ended in between.
    if own.incarnation < registered.incarnation:
        return DiskStanding.RESTORED
    return DiskStanding.SAME


def is_forgotten(own: StoreLife | None, incarnation: int) -> bool:
    """Whether a registry that gives the node this `incarnation` has forgotten lives that its disk
    remembers. Then it may have forgotten views, too, and an old master could be named again."""
    return own is not None and own.incarnation >= incarnation


@dataclass(frozen=True, slots=True)
class RegisteredStore:
    """The registry's copy of a node's `StoreLife`, and the revision to guard it with."""

    life: StoreLife | None
    revision: int

    @classmethod
    def of(cls, entry: KeyValue | None) -> Self:
        if entry is None:
            return cls(None, 0)
        try:
            value = json.loads(entry.value)
            life = StoreLife(str(value["identity"]), int(value["incarnation"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StartError(
                f"registry key {entry.key!r} can't be read: {error!r} in {entry.value[:80]!r}. Put "
                "back what it held; or delete it if this data directory is surely the one that the "
                "node used last"
            ) from error
        return cls(life, entry.revision)


class DiskIdentity:
    """The identity of this node's disk, from the start of a life on."""

    def __init__(
        self, registry: Registry, store: Store, node: str, incarnation: int, before: RegisteredStore
    ) -> None:
        own = read_life(store.disk, store.directory)
        self.standing = judge_disk(own, before.life)
        # A disk of its own makes an identity of its own, also in the place of one that was lost.
        identity = uuid.uuid4().hex if own is None else own.identity
        self.life = StoreLife(identity, incarnation)
        self._registry = registry
        self._store = store
        self._key = STORES + node
        self._before = before

    async def record(self) -> None:
        """Records this life on the disk, then in the registry. Raises `StartError`."""
        try:
            write_life(self._store.disk, self._store.directory, self.life)
        except OSError as error:
            raise StartError(f"data directory {self._store.directory}: {error}") from error
        value = json.dumps(
            {"identity": self.life.identity, "incarnation": self.life.incarnation}
        ).encode()
        before = self._before
        for _ in range(RECORD_TRIES):
            try:
                revision = await patiently(
                    partial(
                        self._registry.commit,
                        [Guard(self._key, before.revision)],
                        [Put(self._key, value)],
                    )
                )
            except RegistryError as error:
                raise StartError(
                    f"registry: this life of the disk is not recorded: {error}"
                ) from error
            if revision is not None:
                return
            # Either the commit's answer was lost, or another process has this node's name.
            before = await registered_store(self._registry, self._key.removeprefix(STORES))
            if before.life == self.life:
                return
            if before.life is not None and before.life.incarnation > self.life.incarnation:
                raise StartError(f"a later life of this node has begun: {before.life}")
        raise StartError(f"registry: this life is not recorded after {RECORD_TRIES} tries")


async def registered_store(registry: Registry, node: str) -> RegisteredStore:
    """The registry's record of the node's disk. Raises `StartError`."""
    try:
        return RegisteredStore.of(await patiently(lambda: registry.get(STORES + node)))
    except RegistryError as error:
        raise StartError(f"registry: {error}") from error


async def disk_identity(
    registry: Registry, store: Store, config: NodeConfig, incarnation: int
) -> DiskIdentity:
    """Judges the disk; records its new life if it is trusted.

    An untrusted one is left for `DiskIdentity.record`, see the module. Raises `StartError`: also if
    the registry has forgotten lives of the node (`is_forgotten`).
    """
    own = read_life(store.disk, store.directory)
    if own is not None and is_forgotten(own, incarnation):
        raise StartError(
            f"data directory {config.data} was used by life {own.incarnation} of this node, and "
            f"for the registry this is life {incarnation}: it was put back to an earlier state"
        )
    identity = DiskIdentity(
        registry, store, config.node, incarnation, await registered_store(registry, config.node)
    )
    if identity.standing.is_trusted:
        await identity.record()
    return identity


async def cluster_id_of(registry: Registry, name: str) -> str:
    """The id that the first node gave the cluster; refuses a registry of another cluster.

    Raises `StartError` and `RegistryError`; the caller has the deadline.
    """
    while True:
        entry = await registry.get(CLUSTER_KEY)
        if entry is not None:
            try:
                found = json.loads(entry.value)
                cluster, cluster_id = str(found["name"]), str(found["id"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise StartError(
                    f"registry key {entry.key!r} can't be read: {error!r} in {entry.value[:80]!r}. "
                    "Put back what it held: each `store.meta` has the cluster's id"
                ) from error
            if cluster != name:
                raise StartError(f"the registry is of cluster {cluster!r}, not {name!r}")
            return cluster_id
        value = {"name": name, "id": uuid.uuid4().hex}
        await registry.commit(
            [Guard(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, json.dumps(value).encode())]
        )


async def cluster_secret(registry: Registry, config: NodeConfig) -> bytes:
    """What nodes of this cluster have in common and clients don't know: the configured one, else
    one that the first node has made and the registry keeps.

    Raises `StartError` and `RegistryError`; the caller has the deadline.
    """
    own = config.cluster_secret
    while True:
        entry = await registry.get(SECRET_KEY)
        if entry is None:
            made = own or secrets.token_hex(32)
            # A configured one is only checked by the registry, which may have other readers.
            value = {"check": _check_of(made)} if own else {"secret": made}
            await registry.commit(
                [Guard(SECRET_KEY, 0)], [Put(SECRET_KEY, json.dumps(value).encode())]
            )
            continue
        try:
            found = json.loads(entry.value)
            kept, check = str(found.get("secret", "")), str(found.get("check", ""))
            if not (kept or check):
                raise ValueError("neither a secret nor a check")
        except (ValueError, AttributeError, RecursionError) as error:
            raise StartError(
                f"registry key {SECRET_KEY!r} can't be read: {error!r}. With all nodes stopped it "
                "may be deleted: the first node makes it anew"
            ) from error
        if not (own or kept):
            raise StartError("cluster_secret: missing. The other nodes are given one")
        if own and not hmac.compare_digest(check or _check_of(kept), _check_of(own)):
            raise StartError(
                "cluster_secret: not that of the other nodes. To change it, stop all nodes and "
                f"delete the registry's key {SECRET_KEY!r}"
            )
        return (own or kept).encode()


def _check_of(secret: str) -> str:
    return hmac.digest(secret.encode(), b"check", "sha256").hex()


async def check_own_name(registry: Registry, config: NodeConfig, store: Store) -> None:
    """Refuses a name under which another directory's node serves.

    A later life of a node takes over from an earlier one. So a name that was given to two nodes by
    mistake would make the second put the first, healthy one out of its rings. A node that was
    killed and has lost its disk looks the same until its lease has run out: that is waited for.
    Raises `StartError`.
    """
    life = read_life(store.disk, store.directory)
    own = "" if life is None else life.identity
    other: NodeRecord | None = None
    try:
        async with asyncio.timeout(config.lease_s * LEASES_WAITED):
            async for changes in registry.watch(NODES + config.node):
                other = _holder(config.node, changes, other)
                if other is None or other.extra.get("identity", own) == own:
                    return
    except TimeoutError:
        if other is None:
            raise StartError(f"registry {config.registry}: no answer") from None
        raise StartError(
            f"node {config.node} serves at {other.address} from another data directory"
        ) from None
    except RegistryError as error:
        raise StartError(f"registry {config.registry}: {error}") from error


def _holder(node: str, changes: Iterable[Change], before: NodeRecord | None) -> NodeRecord | None:
    """The node that has the name after these changes. Names that only begin alike are others'."""
    key = NODES + node
    holder = before
    for change in changes:
        match change:
            case Reset(snapshot):
                values = [entry.value for entry in snapshot.entries if entry.key == key]
                holder = _readable(node, values[0]) if values else None
            case Changed(entry) if entry.key == key:
                holder = _readable(node, entry.value)
            case Removed(removed, _) if removed == key:
                holder = None
    return holder


def _readable(node: str, value: bytes) -> NodeRecord | None:
    try:
        return NodeRecord.decode(node, value)
    except NodeRecordError:
        # A node that lives writes its own record again: what can't be read is nobody's for long.
        return None
