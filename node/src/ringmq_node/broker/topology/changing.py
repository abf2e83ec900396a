"""Declares, deletes and binds: commits to the registry, guarded by what they have read of it.

Each change reads the records that it depends on, as of one revision, decides, and commits guarded
by their revisions. A commit that loses a race decides anew. So an exchange isn't declared twice, a
binding is made only between ends that are there, and a declare into a vhost that is being deleted
fails.

An exchange with `auto_delete` is written again with each binding from it. Its deletion, guarded by
its revision, therefore fails if somebody has bound it meanwhile.

Every method returns once this node's watch has shown the change, and raises `BrokerError`; the
caller has the deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from ringmq_gm.registry.base import (
    CommitUnknownError,
    Delete,
    Guard,
    KeyValue,
    LimitError,
    Operation,
    Put,
    Registry,
    RegistryUnavailableError,
)
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.catalogue import QueueCatalogue, registry_away
from ringmq_node.broker.topology.arguments import (
    BindingWish,
    ExchangeArguments,
    check_binding,
    check_exchange_name,
    check_same,
)
from ringmq_node.broker.topology.router import no_exchange
from ringmq_node.broker.topology.topology import Topology, no_vhost
from ringmq_node.model.names import DEFAULT_VHOST, check_vhost, join_name, split_name, vhost_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import RecordError, decode_entry, queue_key
from ringmq_node.model.topology import (
    TOPOLOGY,
    BindingRecord,
    ExchangeRecord,
    TopologyRecordError,
    VhostRecord,
    exchange_key,
    is_predeclared,
    name_of_topology_key,
    new_topology_id,
    sorted_arguments,
    vhost_key,
)

# A commit that loses a race, or whose outcome is unknown, is tried again so often.
COMMIT_TRIES = 10
# The pause before that is random, up to this.
PAUSE_S_MAX = 0.05
# Of the whole cluster. All of them are in the memory of every node.
VHOSTS_MAX = 1_000
EXCHANGES_MAX = 20_000
BINDINGS_MAX = 200_000
# Bindings that are removed with their exchange, in the same commit; the sweep removes the others.
TOGETHER_MAX = 100

Found = Mapping[str, KeyValue]


class _AgainError(Exception):
    """What this node knows is older than `entry`, of the registry: decide again once its watch has
    shown that."""

    def __init__(self, entry: KeyValue) -> None:
        super().__init__(entry.key)
        self.entry = entry


class TopologyChanges:
    """See the module."""

    def __init__(self, registry: Registry, topology: Topology, catalogue: QueueCatalogue) -> None:
        self._registry = registry
        self._topology = topology
        self._catalogue = catalogue

    # --- exchanges ---

    async def declare_exchange(self, name: str, arguments: ExchangeArguments) -> bool:
        """Returns whether it is new; an existing one has to have been declared the same."""
        vhost, short = split_name(name)
        await self._topology.ensure_vhost(vhost)
        # The default exchange isn't declared, not even as it is: RabbitMQ refuses that as well.
        if short and is_predeclared(name):
            check_same(self._topology.exchange(name), arguments)
            return False
        check_exchange_name(short)
        guards = self._topology.vhost_guards(vhost)
        _check_room("exchanges", self._topology.counts()[1], EXCHANGES_MAX)
        life = "" if arguments.durable else self._topology.life_id()
        mine = ExchangeRecord(
            name,
            new_topology_id(),
            arguments.kind,
            arguments.durable,
            arguments.auto_delete,
            arguments.internal,
            arguments.alternate,
            life,
        )
        is_new = False

        def decide(found: Found) -> Sequence[Operation]:
            nonlocal is_new
            entry = found.get(mine.key)
            if entry is not None:
                existing = _exchange(entry)
                # One that a commit without an answer has made is new.
                is_new = existing.id == mine.id
                if self._topology.hidden_exchange(name) != existing:
                    check_same(existing, arguments)
                    return []
            is_new = True
            return [Put(mine.key, mine.encode())]

        await self._commit([mine.key], decide, guards)
        return is_new

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Deletes it, and the bindings from it and to it."""
        vhost, short = split_name(name)
        await self._topology.ensure_vhost(vhost)
        check_exchange_name(short)
        key = exchange_key(name)
        if if_unused:
            # Written as it is: once this node's watch shows that, it has heard of every binding
            # that any node had confirmed before.
            await self._commit([key], lambda found: [Put(key, found[key].value) for key in found])

        tried: ExchangeRecord | None = None

        def decide(found: Found) -> Sequence[Operation]:
            nonlocal tried
            entry = found.get(key)
            if entry is None and tried is not None:
                return []  # Deleted by a commit without an answer, or by somebody else since.
            if entry is None:
                raise no_exchange(name)
            try:
                exchange = _exchange(entry)
            except BrokerError:
                # To delete it is the way out of a record that can't be read.
                return [Delete(key)]
            if if_unused and self._topology.has_bindings_from(exchange):
                raise BrokerError(
                    Reason.EXCHANGE_IN_USE,
                    f"exchange {short!r} in vhost {vhost!r} has bindings",
                    exchange=short,
                    vhost=vhost,
                )
            with_it = [*self._topology.bindings_of(exchange.id)][:TOGETHER_MAX]
            tried = exchange
            return [Delete(key), *map(Delete, with_it)]

        await self._commit([key], decide)
        if tried is not None:
            await self._topology.wait_gone(tried)

    async def delete_if_unbound(self, name: str) -> None:
        """Deletes an exchange with `auto_delete` that had bindings from it, and has none now."""
        key = exchange_key(name)
        entry = (await self._read([key])).get(key)
        # Its record was written with each binding from it: none that is older is missed.
        if entry is not None:
            await self._topology.wait_shown(entry.revision)

        def decide(found: Found) -> Sequence[Operation]:
            if entry is None or found.get(key) != entry:
                return []
            try:
                exchange = _exchange(entry)
            except BrokerError:
                return []
            is_over = exchange.auto_delete and exchange.was_bound
            if not is_over or self._topology.has_bindings_from(exchange):
                return []
            return [
                Delete(key),
                *map(Delete, [*self._topology.bindings_of(exchange.id)][:TOGETHER_MAX]),
            ]

        await self._commit([key], decide)

    # --- bindings ---

    async def bind(self, wish: BindingWish, caller: Caller) -> bool:
        """Returns whether the binding is new."""
        await self._ensure_ends(wish)
        check_binding(self._topology.exchange(wish.source), wish.routing_key, wish.arguments or {})
        _check_room("bindings", self._topology.counts()[2], BINDINGS_MAX)
        return await self._shown(lambda: self._bind(wish, caller))

    async def _bind(self, wish: BindingWish, caller: Caller) -> bool:
        await self._ensure_ends(wish)
        binding = self._binding_of(wish, caller)
        is_new = False

        def decide(found: Found) -> Sequence[Operation]:
            nonlocal is_new
            # First: the record of a binding whose end is gone may be there yet.
            source = self._same_ends(found, binding)
            if binding.key in found:
                return []
            puts: list[Operation] = [Put(binding.key, binding.encode())]
            if source is not None and source.auto_delete:
                puts.append(Put(source.key, replace(source, was_bound=True).encode()))
            is_new = True
            return puts

        guards = self._topology.vhost_guards(vhost_of(wish.source))
        await self._commit(_keys_of(binding), decide, guards)
        return is_new

    async def unbind(self, wish: BindingWish, caller: Caller) -> bool:
        """Returns whether there was such a binding. Both ends have to be there."""
        existed = await self._shown(lambda: self._unbind(wish, caller))
        if existed and self._topology.exchange(wish.source).auto_delete:
            await self.delete_if_unbound(wish.source)
        return existed

    async def _unbind(self, wish: BindingWish, caller: Caller) -> bool:
        await self._ensure_ends(wish)
        binding = self._binding_of(wish, caller)
        existed = False

        def decide(found: Found) -> Sequence[Operation]:
            nonlocal existed
            self._same_ends(found, binding)
            existed = existed or binding.key in found
            return [Delete(binding.key)] if binding.key in found else []

        await self._commit(_keys_of(binding), decide)
        return existed

    async def _shown(self, change: Callable[[], Awaitable[bool]]) -> bool:
        """The outcome of `change`, which is decided again while this node's watches are behind."""
        for _ in range(COMMIT_TRIES):
            try:
                return await change()
            except _AgainError as behind:
                watch = self._topology if _is_ours(behind.entry.key) else self._catalogue
                await watch.wait_shown(behind.entry.revision)
        raise registry_away()

    async def _ensure_ends(self, wish: BindingWish) -> None:
        for name in (wish.source, *([wish.destination] if wish.to_exchange else [])):
            if (await self._topology.ensure_exchange(name)).is_default:
                raise BrokerError(
                    Reason.ACCESS_REFUSED,
                    "the default exchange can't be bound: every queue is bound to it by its name",
                    field="source" if name == wish.source else "destination",
                )
        if not wish.to_exchange:
            await self._catalogue.ensure_known(wish.destination)
            self._catalogue.record_of(wish.destination)

    def _binding_of(self, wish: BindingWish, caller: Caller) -> BindingRecord:
        """Raises `BrokerError` if the queue is another connection's than the caller's."""
        if wish.to_exchange:
            destination_id = self._topology.exchange(wish.destination).id
        else:
            queue = self._catalogue.record_of(wish.destination)
            # The record that is judged is the one that is bound: a commit with its id fails if the
            # queue was deleted since, and its namesake may be another connection's.
            caller.check_may_use(queue)
            destination_id = queue.id
        return BindingRecord(
            wish.source,
            self._topology.exchange(wish.source).id,
            wish.destination,
            destination_id,
            wish.to_exchange,
            wish.routing_key,
            sorted_arguments(wish.arguments or {}),
        )

    def _same_ends(self, found: Found, binding: BindingRecord) -> ExchangeRecord | None:
        """The source; None if it is predeclared, and has no record. Raises `_AgainError` if one of
        the ends isn't the one that this node knows."""
        source: ExchangeRecord | None = None
        if not is_predeclared(binding.source):
            source = _same_exchange(found, binding.source, binding.source_id)
        if not binding.to_exchange:
            _same_queue(found, binding.destination, binding.destination_id)
        elif not is_predeclared(binding.destination):
            _same_exchange(found, binding.destination, binding.destination_id)
        return source

    # --- vhosts ---

    async def create_vhost(self, name: str) -> bool:
        """Returns whether it is new."""
        check_vhost(name)
        if name == DEFAULT_VHOST:
            return False
        _check_room("vhosts", self._topology.counts()[0], VHOSTS_MAX)
        mine = VhostRecord(name, new_topology_id())
        is_new = False

        def decide(found: Found) -> Sequence[Operation]:
            nonlocal is_new
            entry = found.get(mine.key)
            if entry is not None:
                existing = _vhost(entry)
                is_new = existing.id == mine.id
                if existing.deleting:
                    raise BrokerError(
                        Reason.VHOST_IN_USE, f"vhost {name!r} is being deleted", vhost=name
                    )
                return []
            is_new = True
            return [Put(mine.key, mine.encode())]

        await self._commit([mine.key], decide)
        return is_new

    async def mark_vhost(self, name: str, *, deleting: bool) -> None:
        """From now on nothing is declared in it, or again."""
        check_vhost(name)
        if name == DEFAULT_VHOST:
            raise BrokerError(Reason.ACCESS_REFUSED, "the vhost '/' is always there", field="vhost")
        key = vhost_key(name)

        def decide(found: Found) -> Sequence[Operation]:
            entry = found.get(key)
            if entry is None:
                raise no_vhost(name)
            existing = _vhost(entry)
            if existing.deleting == deleting:
                return []
            return [Put(key, replace(existing, deleting=deleting).encode())]

        await self._commit([key], decide)

    async def remove_vhost(self, name: str) -> None:
        """Of a vhost that is marked, and has no queues any more, with its exchanges."""
        prefix = join_name(name, "")
        try:
            entries = (await self._registry.list(exchange_key(prefix))).entries
        except RegistryUnavailableError as error:
            raise registry_away() from error
        keys = [entry.key for entry in entries]
        for first in range(0, len(keys), TOGETHER_MAX):
            chunk = keys[first : first + TOGETHER_MAX]
            await self._commit(chunk, lambda found: [Delete(key) for key in found])
        key = vhost_key(name)
        await self._commit([key], lambda found: [Delete(key)] if key in found else [])

    # --- commits ---

    async def _read(self, keys: Sequence[str]) -> Found:
        try:
            return {entry.key: entry for entry in (await self._registry.read(keys)).entries}
        except RegistryUnavailableError as error:
            raise registry_away() from error
        except LimitError as error:
            raise _too_large(error) from error

    async def _commit(
        self,
        keys: Sequence[str],
        decide: Callable[[Found], Sequence[Operation]],
        guards: Sequence[Guard] = (),
    ) -> None:
        """Commits what `decide` makes of the records at `keys`; nothing, if it returns nothing."""
        for _ in range(COMMIT_TRIES):
            found = await self._read(keys)
            operations = decide(found)
            if not operations:
                # This node's own watch may not have shown yet what was found.
                shown = [each.revision for each in found.values() if _is_ours(each.key)]
                await self._topology.wait_shown(max(shown, default=0))
                return
            read = [Guard(key, found[key].revision if key in found else 0) for key in keys]
            try:
                revision = await self._registry.commit([*read, *guards], operations)
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except LimitError as error:
                raise _too_large(error) from error
            except CommitUnknownError:
                revision = None
            if revision is not None:
                await self._topology.wait_shown(revision)
                return
            await asyncio.sleep(random.random() * PAUSE_S_MAX)
            for guard in guards:
                # The vhost may be gone by now: say so, instead of trying in vain.
                await self._topology.ensure_vhost(name_of_topology_key(guard.key))
        raise registry_away()


def _is_ours(key: str) -> bool:
    return key.startswith(TOPOLOGY)


def _keys_of(binding: BindingRecord) -> list[str]:
    """Of its own record, and of those of its ends."""
    key_of_end = exchange_key if binding.to_exchange else queue_key
    keys = (binding.key, exchange_key(binding.source), key_of_end(binding.destination))
    return list(dict.fromkeys(keys))


def _same_exchange(found: Found, name: str, exchange_id: str) -> ExchangeRecord:
    entry = found.get(exchange_key(name))
    if entry is None:
        raise no_exchange(name)
    exchange = _exchange(entry)
    if exchange.id != exchange_id:
        raise _AgainError(entry)
    return exchange


def _same_queue(found: Found, name: str, queue_id: str) -> None:
    entry = found.get(queue_key(name))
    if entry is None:
        raise BrokerError(
            Reason.QUEUE_NOT_FOUND, f"there is no queue {split_name(name)[1]!r}", queue=name
        )
    try:
        if decode_entry(entry.key, entry.value).id != queue_id:
            raise _AgainError(entry)
    except RecordError:
        # Bound to what this node knew of it; the queue itself refuses until it can be read.
        return


def _exchange(entry: KeyValue) -> ExchangeRecord:
    """Raises `BrokerError` if it can't be read."""
    try:
        return ExchangeRecord.decode(entry.key, entry.value)
    except TopologyRecordError as error:
        raise BrokerError(Reason.QUARANTINED, str(error), key=entry.key) from error


def _vhost(entry: KeyValue) -> VhostRecord:
    """Raises `BrokerError` if it can't be read."""
    try:
        return VhostRecord.decode(entry.key, entry.value)
    except TopologyRecordError as error:
        raise BrokerError(Reason.QUARANTINED, str(error), key=entry.key) from error


def _too_large(error: LimitError) -> BrokerError:
    return BrokerError(Reason.LIMIT_EXCEEDED, f"the registry can't have it: {error}")


def _check_room(what: str, count: int, count_max: int) -> None:
    if count >= count_max:
        raise BrokerError(
            Reason.LIMIT_EXCEEDED,
            f"there are {count} {what}, and at most {count_max} in a cluster",
            limit=count_max,
        )
