"""What operators have set for the whole cluster: its nodes, and the policies.

    settings/nodes/<node>                 JSON {"drained": bool, "evacuated": bool}
    settings/policy/<vhost and name>      JSON, `Policy.to_json`; the key is quoted
    settings/bounds/<vhost and name>      the same, of operator policies

A node belongs to the cluster from its first start (`enrol`) until an operator forgets it, whether
it is up or not. How many replicas are wanted by default follows from that number, so a queue that
is declared while a node is down gets its place there.

Kept in the registry, and mirrored on each node by a watch. A value that can't be read is logged and
left out: it must not stop the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from ringmq_base.notifier import Notifier
from ringmq_gm.nodes import NODES
from ringmq_gm.registry.base import (
    Change,
    Changed,
    CommitUnknownError,
    Delete,
    Guard,
    KeyValue,
    Operation,
    Put,
    Registry,
    RegistryUnavailableError,
    Removed,
    Reset,
)
from ringmq_node.broker.catalogue import registry_away
from ringmq_node.broker.placement import NodeStanding
from ringmq_node.model.names import DEFAULT_VHOST, join_name
from ringmq_node.model.policies import (
    NAME_BYTES_MAX,
    POLICIES_MAX,
    ApplyTo,
    Policy,
    PolicyError,
    Wanted,
    matching,
    too_many_policies,
    wanted_of,
)
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueRecord

logger = logging.getLogger(__name__)

SETTINGS = "settings/"
NODES_SET = SETTINGS + "nodes/"
# Short: the longest vhost and name, quoted, leave 16 bytes of the registry's key.
POLICIES = SETTINGS + "policy/"
OPERATOR_POLICIES = SETTINGS + "bounds/"
# A commit that loses a race is tried again so often.
COMMIT_TRIES = 5


def node_key(node: str) -> str:
    return NODES_SET + node


def policy_key(vhost: str, name: str, *, is_operator: bool) -> str:
    """Without a name: the prefix of the vhost's, which must not be "/"."""
    prefix = OPERATOR_POLICIES if is_operator else POLICIES
    return prefix + quote(join_name(vhost, name), safe="")


def unknown_node(node: str, nodes: Iterable[str]) -> BrokerError:
    return BrokerError(
        Reason.NODE_NOT_FOUND,
        f"there is no node {node!r}; the cluster has {', '.join(sorted(nodes))}",
        node=node,
    )


async def enrol(registry: Registry, node: str) -> None:
    """Makes the node one of the cluster's, unless it is already. May be repeated after any error.
    Raises `RegistryError`."""
    if await registry.get(node_key(node)) is None:
        # Refused is one that somebody else has made meanwhile.
        put = Put(node_key(node), NodeStanding().encode())
        await registry.commit([Guard(node_key(node), 0)], [put])


class ClusterSettings:
    """See the module. `nodes` and policies as far as the watch has come."""

    def __init__(self, registry: Registry) -> None:
        self.nodes: dict[str, NodeStanding] = {}
        # Set once the registry has said what there is.
        self.loaded = asyncio.Event()
        self._registry = registry
        # By registry key.
        self._policies: dict[str, Policy] = {}
        self._shown = 0
        self._changed = Notifier()
        # What was worked out for a record, as long as neither it nor the settings change.
        self._wanted: dict[str, tuple[QueueRecord, Wanted]] = {}

    async def follow(self, changed: Callable[[], None]) -> None:
        """Follows the registry until cancelled; `changed` is called after each change."""
        async for changes in self._registry.watch(SETTINGS):
            for change in changes:
                self._learn_change(change)
            self._wanted.clear()
            self.loaded.set()
            changed()
            self._changed.notify()

    def _learn_change(self, change: Change) -> None:
        match change:
            case Reset(snapshot):
                self.nodes.clear()
                self._policies.clear()
                for entry in snapshot.entries:
                    self._learn(entry)
                self._shown = max(self._shown, snapshot.revision)
            case Changed(entry):
                self._learn(entry)
                self._shown = max(self._shown, entry.revision)
            case Removed(key, revision):
                self._forget(key)
                self._shown = max(self._shown, revision)

    def _learn(self, entry: KeyValue) -> None:
        self._forget(entry.key)
        node = entry.key.removeprefix(NODES_SET)
        is_node = node != entry.key
        if is_node:
            # Before its value is read: a node that isn't here counts as forgotten, its disk as
            # lost, and rings would begin again without it.
            self.nodes[node] = NodeStanding()
        try:
            if is_node:
                self.nodes[node] = NodeStanding.decode(entry.value)
            else:
                self._policies[entry.key] = Policy.from_json(json.loads(entry.value))
        except (PolicyError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.error("the registry's %s can't be read, and says nothing: %r", entry.key, error)

    def _forget(self, key: str) -> None:
        self._policies.pop(key, None)
        if key.startswith(NODES_SET):
            self.nodes.pop(key.removeprefix(NODES_SET), None)

    # --- looking up ---

    def policies(self) -> list[Policy]:
        """By vhost, operator policies last, otherwise in the order in which they are tried."""
        return sorted(
            self._policies.values(), key=lambda p: (p.vhost, p.is_operator, -p.priority, p.name)
        )

    def wanted_of(self, record: QueueRecord) -> Wanted:
        """What the queue should have by its declaration and the policies of this moment."""
        known = self._wanted.get(record.id)
        if known is not None and known[0] is record:
            return known[1]
        wanted = self.wanted_among(record, self.nodes)
        self._wanted[record.id] = record, wanted
        return wanted

    def wanted_among(self, record: QueueRecord, nodes: Iterable[str]) -> Wanted:
        """`wanted_of` in a cluster of these nodes."""
        found = self._policies.values()
        evacuated = {node for node, standing in self.nodes.items() if standing.evacuated}
        return wanted_of(
            record,
            matching((policy for policy in found if not policy.is_operator), record.name),
            matching((policy for policy in found if policy.is_operator), record.name),
            [node for node in nodes if node not in evacuated],
        )

    def exchange_policies(self) -> tuple[Policy, ...]:
        """Those that apply to exchanges."""
        return tuple(
            policy for policy in self._policies.values() if policy.apply_to is not ApplyTo.QUEUES
        )

    def forget_queue(self, queue_id: str) -> None:
        """The queue was deleted: what was worked out for it is dropped."""
        self._wanted.pop(queue_id, None)

    async def wait_shown(self, revision: int) -> None:
        """Returns when the watch has come to this revision; the caller has the deadline."""
        while self._shown < revision:
            await self._changed.wait()

    # --- changing; each raises `BrokerError`, the caller has the deadline ---

    async def set_policy(
        self, policy: Policy, guards: Callable[[], Sequence[Guard]] = lambda: ()
    ) -> bool:
        """Returns whether it is new. This node's watch has shown it then. `guards` hold while the
        policy's vhost is there, and raise `BrokerError` when it isn't."""
        key = policy_key(policy.vhost, policy.name, is_operator=policy.is_operator)
        if key not in self._policies and len(self._policies) >= POLICIES_MAX:
            raise too_many_policies()
        value = json.dumps(policy.to_json(), separators=(",", ":"), ensure_ascii=False).encode()
        return not await self._write(key, Put(key, value), guards)

    async def delete_policy(self, vhost: str, name: str, *, is_operator: bool) -> bool:
        """Returns whether there was one."""
        if len(name.encode()) > NAME_BYTES_MAX:
            # The registry would refuse the key.
            return False
        key = policy_key(vhost, name, is_operator=is_operator)
        return await self._write(key, Delete(key))

    async def delete_policies_of(self, vhost: str) -> None:
        """Of a vhost that is being deleted: no policy is set for it any more."""
        assert vhost != DEFAULT_VHOST, "it has no prefix"
        for is_operator in (False, True):
            try:
                found = await self._registry.list(policy_key(vhost, "", is_operator=is_operator))
            except RegistryUnavailableError as error:
                raise registry_away() from error
            for entry in found.entries:
                await self._write(entry.key, Delete(entry.key))

    async def set_standing(self, node: str, standing: NodeStanding) -> None:
        """Of a node that belongs to the cluster."""
        if node not in self.nodes:
            raise unknown_node(node, self.nodes)
        await self._write(node_key(node), Put(node_key(node), standing.encode()), changes=node)

    async def forget_node(self, node: str) -> None:
        """Only while its lease has run out."""
        if len(node.encode()) > NAME_BYTES_MAX:
            raise unknown_node(node, self.nodes)
        key = node_key(node)
        is_unknown = False
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._registry.get(key)
                if entry is None and is_unknown:
                    # An earlier try has succeeded without an answer.
                    await self._wait_forgotten(node)
                    return
                if entry is None:
                    raise unknown_node(node, self.nodes)
                # A node that starts meanwhile enrols before it registers: then one of these fails.
                guards = [Guard(key, entry.revision), Guard(NODES + node, 0)]
                revision = await self._registry.commit(guards, [Delete(key)])
                if revision is None and await self._registry.get(NODES + node) is not None:
                    raise BrokerError(
                        Reason.NODE_IS_UP,
                        f"node {node!r} is up, or its lease has not run out yet: stop it first",
                        node=node,
                    )
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                is_unknown = True
                continue
            if revision is not None:
                await self.wait_shown(revision)
                return
        raise registry_away()

    async def _wait_forgotten(self, node: str) -> None:
        while node in self.nodes:
            await self._changed.wait()

    async def _write(
        self,
        key: str,
        operation: Operation,
        guards: Callable[[], Sequence[Guard]] = lambda: (),
        *,
        changes: str = "",
    ) -> bool:
        """Carries out `operation` on the key; returns whether it existed before. `changes`: the
        node that it is about, which may have been forgotten meanwhile, and stays so."""
        existed: bool | None = None
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._registry.get(key)
                # If an earlier try has succeeded without an answer, it has changed this.
                existed = entry is not None if existed is None else existed
                if entry is None and isinstance(operation, Delete):
                    return existed
                if entry is None and changes:
                    raise unknown_node(changes, self.nodes.keys() - {changes})
                guard = Guard(key, 0 if entry is None else entry.revision)
                revision = await self._registry.commit([guard, *guards()], [operation])
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                continue
            if revision is not None:
                await self.wait_shown(revision)
                return existed
        raise registry_away()
