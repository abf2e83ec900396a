"""The registry's records of vhosts, exchanges and bindings, mirrored on this node by a watch.

Routing reads only what is here (`router`): no message asks the registry. A change that was made
through any node reaches the others through their watch. The node that has made it answers once its
own watch has shown it (`wait_shown`).

A record that can't be read stops nothing but itself. It is logged once, `unreadable` has it until
it is written anew or deleted, and the last good record counts on. If there is none, a message to
that exchange is refused, not lost; the same holds for a queue whose record can't be read.

An exchange is shown to the router while its vhost is there and, if it is transient, while the
cluster's life in which it was declared goes on (`life`). What is dead, bindings without one of
their ends above all, is gathered in `suspects` for the sweep (`sweeping`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from ringmq_base.notifier import Notifier
from ringmq_base.pieces import Pieces
from ringmq_gm.registry.base import (
    KEY_BYTES_MAX,
    Change,
    Changed,
    Guard,
    KeyValue,
    Registry,
    RegistryUnavailableError,
    Removed,
    Reset,
)
from ringmq_node.broker.catalogue import WATCH_LAG_S_MAX, QueueCatalogue, Touched, registry_away
from ringmq_node.broker.topology.life import LIFE_KEY, ClusterLife
from ringmq_node.broker.topology.router import Router
from ringmq_node.model.names import DEFAULT_VHOST, in_vhost, join_name, split_name, vhost_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.topology import (
    BINDINGS,
    EXCHANGES,
    ROOT_VHOST,
    TOPOLOGY,
    VHOSTS,
    BindingRecord,
    ExchangeRecord,
    TopologyRecordError,
    VhostRecord,
    exchange_key,
    name_of_topology_key,
    predeclared,
    vhost_key,
)

logger = logging.getLogger(__name__)


class _CatalogueQueues:
    """Implements `router.PresentQueues`.

    A queue whose record can't be read counts as there: a message for it is refused by the queue,
    and its publisher sends it again. If it didn't count, the message would be dropped.
    """

    def __init__(self, catalogue: QueueCatalogue) -> None:
        self._records = catalogue.records
        self._unreadable = catalogue.unreadable

    def has(self, queue: str) -> bool:
        return queue in self._records or queue in self._unreadable

    def has_id(self, queue: str, queue_id: str) -> bool:
        record = self._records.get(queue)
        return queue in self._unreadable if record is None else record.id == queue_id


class Topology:
    """See the module."""

    def __init__(self, registry: Registry, catalogue: QueueCatalogue) -> None:
        self.router = Router(_CatalogueQueues(catalogue))
        self.life: ClusterLife | None = None
        # Why a record can't be read, by its key in the registry.
        self.unreadable: dict[str, str] = {}
        # Ids of ends that may be gone, and names of exchanges that may have to go.
        self.suspect_ends: set[str] = set()
        self.suspect_exchanges: set[str] = set()
        # Set once the registry has said what there is.
        self.loaded = asyncio.Event()
        self._registry = registry
        self._vhosts: dict[str, VhostRecord] = {}
        self._exchanges: dict[str, ExchangeRecord] = {}
        self._bindings: dict[str, BindingRecord] = {}
        # By the id of either end, and their keys.
        self._ends: dict[str, dict[str, BindingRecord]] = {}
        # By key: of all records that are here.
        self._revisions: dict[str, int] = {}
        self._shown = 0
        self._changed = Notifier()
        self._show_vhost(ROOT_VHOST)

    async def follow(self) -> None:
        """Follows the registry until cancelled."""
        async for changes in self._registry.watch(TOPOLOGY):
            pieces = Pieces()
            shown = self._shown
            for change in changes:
                shown = max(shown, await self._learn_change(change, pieces))
                await pieces.step()
            self.loaded.set()
            # With the last change of a batch: a commit's changes have one revision.
            self._shown = shown
            self._changed.notify()

    async def _learn_change(self, change: Change, pieces: Pieces) -> int:
        """Returns the registry's revision that the change shows."""
        match change:
            case Reset(snapshot):
                present = {entry.key for entry in snapshot.entries}
                for key in [key for key in self._revisions if key not in present]:
                    self._forget(key)
                for entry in snapshot.entries:
                    if self._revisions.get(entry.key) != entry.revision:
                        self._learn(entry)
                    await pieces.step()
                return snapshot.revision
            case Changed(entry):
                self._learn(entry)
                return entry.revision
            case Removed(key, revision):
                self._forget(key)
                return revision

    # --- records ---

    def _learn(self, entry: KeyValue) -> None:
        self._revisions[entry.key] = entry.revision
        try:
            self._take(entry.key, entry.value)
        except TopologyRecordError as error:
            if self.unreadable.get(entry.key) != str(error):
                logger.error("%s: quarantined: %s", entry.key, error)
            self.unreadable[entry.key] = str(error)
            return
        if self.unreadable.pop(entry.key, None) is not None:
            logger.info("%s: the record can be read again", entry.key)

    def _take(self, key: str, value: bytes) -> None:
        """Raises `TopologyRecordError`, and has changed nothing then."""
        if key.startswith(BINDINGS):
            self._take_binding(BindingRecord.decode(key, value), key)
        elif key.startswith(EXCHANGES):
            exchange = ExchangeRecord.decode(key, value)
            before = self._exchanges.get(exchange.name)
            if before is not None and before.id != exchange.id:
                self.suspect_ends.add(before.id)
            self._exchanges[exchange.name] = exchange
            self._show_exchange(exchange)
        elif key.startswith(VHOSTS):
            vhost = VhostRecord.decode(key, value)
            if self._vhosts.get(vhost.name, vhost).id != vhost.id:
                self._hide_vhost(vhost.name)
            self._show_vhost(vhost)
        elif key == LIFE_KEY:
            before_id = self.life and self.life.id
            self.life = ClusterLife.decode(value)
            if self.life.id != before_id:
                for exchange in self._exchanges.values():
                    self._show_exchange(exchange)

    def _forget(self, key: str) -> None:
        self._revisions.pop(key, None)
        self.unreadable.pop(key, None)
        name = name_of_topology_key(key)
        if key.startswith(BINDINGS):
            binding = self._bindings.pop(key, None)
            if binding is not None:
                self._drop_binding(binding, key)
        elif key.startswith(EXCHANGES):
            exchange = self._exchanges.pop(name, None)
            if exchange is not None:
                self.router.remove_exchange(name)
                self.suspect_ends.add(exchange.id)
        elif key.startswith(VHOSTS):
            self._hide_vhost(name)

    def _take_binding(self, binding: BindingRecord, key: str) -> None:
        if key in self._bindings:
            return
        self._bindings[key] = binding
        for end in (binding.source_id, binding.destination_id):
            self._ends.setdefault(end, {})[key] = binding
        self.router.bind(binding)
        # One of its ends may have been gone before it came: the two watches aren't in step.
        if not self.router.is_live(binding):
            self.suspect_ends |= {binding.source_id, binding.destination_id}

    def _drop_binding(self, binding: BindingRecord, key: str) -> None:
        self.router.unbind(binding)
        # Both ends are one and the same if an exchange is bound to itself.
        for end in {binding.source_id, binding.destination_id}:
            del self._ends[end][key]
            if not self._ends[end]:
                del self._ends[end]
        source = self._exchanges.get(binding.source)
        if source is not None and source.auto_delete:
            self.suspect_exchanges.add(source.name)

    def _show_exchange(self, exchange: ExchangeRecord) -> None:
        life = self.life and self.life.id
        if vhost_of(exchange.name) in self._vhosts and exchange.life in ("", life):
            self.router.put_exchange(exchange)
            # The node that was to delete it may have died.
            if exchange.auto_delete and exchange.was_bound:
                self.suspect_exchanges.add(exchange.name)
        else:
            self.router.remove_exchange(exchange.name)
            self.suspect_exchanges.add(exchange.name)

    def _show_vhost(self, vhost: VhostRecord) -> None:
        self._vhosts[vhost.name] = vhost
        for exchange in predeclared(vhost):
            self.router.put_exchange(exchange)
        for exchange in self._exchanges.values():
            if in_vhost(exchange.name, vhost.name):
                self._show_exchange(exchange)

    def _hide_vhost(self, name: str) -> None:
        vhost = self._vhosts.pop(name, None)
        if vhost is None:
            return
        for exchange in predeclared(vhost):
            self.router.remove_exchange(exchange.name)
            self.suspect_ends.add(exchange.id)
        for exchange in self._exchanges.values():
            if in_vhost(exchange.name, name):
                self._show_exchange(exchange)

    def queues_touched(self, touched: Touched) -> None:
        """For the catalogue's watch: bindings of queues that are gone are suspect."""
        self.suspect_ends.update(queue_id for queue_id, record in touched.items() if record is None)

    # --- vhosts ---

    def vhosts(self) -> list[VhostRecord]:
        return sorted(self._vhosts.values(), key=lambda vhost: vhost.name)

    def vhost(self, name: str) -> VhostRecord:
        """Raises `BrokerError` if there is no such vhost, or it is being deleted."""
        found = self._vhosts.get(name or DEFAULT_VHOST)
        if found is None:
            raise no_vhost(name)
        if found.deleting:
            raise BrokerError(
                Reason.VHOST_NOT_FOUND, f"vhost {name!r} is being deleted", vhost=name
            )
        return found

    def vhost_guards(self, name: str) -> list[Guard]:
        """They hold as long as the vhost is there; none for "/". Raises as `vhost` does."""
        vhost = self.vhost(name)
        if vhost.name == DEFAULT_VHOST:
            return []
        return [Guard(vhost.key, self._revisions[vhost.key])]

    async def ensure_vhost(self, name: str) -> None:
        """Returns once the vhost is known here if it was created before, through any node.

        Raises `BrokerError` if there is none.
        """
        if (name or DEFAULT_VHOST) not in self._vhosts:
            await self._ensure_shown(vhost_key(name))
        self.vhost(name)

    # --- exchanges and bindings ---

    def exchange(self, name: str) -> ExchangeRecord:
        """Raises `BrokerError` if there is none, or its record can't be read."""
        why = self.unreadable.get(exchange_key(name)) if self.unreadable else None
        if why is not None and name not in self._exchanges:
            raise BrokerError(
                Reason.QUARANTINED,
                f"exchange {split_name(name)[1]!r} is quarantined: {why}",
                exchange=name,
            )
        return self.router.exchange(name)

    async def ensure_exchange(self, name: str) -> ExchangeRecord:
        """The exchange, if it was declared before, through any node; see `ensure_vhost`."""
        try:
            return self.exchange(name)
        except BrokerError as error:
            if error.reason is not Reason.EXCHANGE_NOT_FOUND:
                raise
        await self.ensure_vhost(vhost_of(name))
        await self._ensure_shown(exchange_key(name))
        return self.exchange(name)

    def exchanges(self, vhost: str) -> list[ExchangeRecord]:
        """By name. Raises `BrokerError` if there is no such vhost."""
        self.vhost(vhost)
        found = [each for each in self.router.exchanges() if in_vhost(each.name, vhost)]
        return sorted(found, key=lambda each: each.name)

    def hidden_exchange(self, name: str) -> ExchangeRecord | None:
        """An exchange whose record is there, and which is not: its life or its vhost is over."""
        record = self._exchanges.get(name)
        life = self.life and self.life.id
        if record is None or (vhost_of(name) in self._vhosts and record.life in ("", life)):
            return None
        return record

    def bindings(
        self, vhost: str, *, source: str = "", destination: str = ""
    ) -> list[BindingRecord]:
        """Those with both ends, in order of their ends and keys; with `source` and `destination`
        (names without the vhost) only theirs. Raises `BrokerError` if there is no such vhost."""
        self.vhost(vhost)
        if source:
            found: Iterable[BindingRecord] = self.router.bindings_from(join_name(vhost, source))
        else:
            found = [each for each in self._bindings.values() if in_vhost(each.source, vhost)]
        wanted = join_name(vhost, destination) if destination else ""
        return sorted(
            (
                each
                for each in found
                if (not wanted or each.destination == wanted) and self.router.is_live(each)
            ),
            key=binding_order,
        )

    def bindings_of(self, end_id: str) -> Mapping[str, BindingRecord]:
        """By key: those from or to the queue or exchange with this id."""
        return self._ends.get(end_id, {})

    def has_bindings_from(self, exchange: ExchangeRecord) -> bool:
        return any(
            binding.source_id == exchange.id and self.router.is_live(binding)
            for binding in self.bindings_of(exchange.id).values()
        )

    def seems_dead(self, end_id: str) -> bool:
        """Whether there are bindings of this end, and it is not there as far as this node knows."""
        binding = next(iter(self.bindings_of(end_id).values()), None)
        if binding is None:
            return False
        if binding.source_id == end_id:
            return not self.router.has_end(True, binding.source, end_id)
        return not self.router.has_end(binding.to_exchange, binding.destination, end_id)

    def counts(self) -> tuple[int, int, int]:
        """Of vhosts, exchanges and bindings, dead ones too."""
        return len(self._vhosts), len(self._exchanges), len(self._bindings)

    def life_id(self) -> str:
        """Raises `BrokerError` if the cluster's life isn't known."""
        if self.life is None:
            raise registry_away()
        return self.life.id

    # --- waiting for the watch ---

    async def wait_shown(self, revision: int) -> None:
        """Returns when the watch has come to this revision; the caller has the deadline."""
        while self._shown < revision:
            await self._changed.wait()

    async def wait_gone(self, exchange: ExchangeRecord) -> None:
        """Returns when the watch has shown that it was deleted; the caller has the deadline."""
        while (known := self._exchanges.get(exchange.name)) and known.id == exchange.id:
            await self._changed.wait()

    async def wait_unbound(self, end_id: str, keys: Sequence[str]) -> None:
        """Returns when the watch has shown that these bindings of an end were removed."""
        while not self.bindings_of(end_id).keys().isdisjoint(keys):
            await self._changed.wait()

    async def look_up_exchanges(self, names: Sequence[str]) -> None:
        """Returns when this node has heard of those of them that exist. At most `OPERATIONS_MAX`
        names, by one call. Raises `BrokerError`."""
        await self._ensure_shown(*map(exchange_key, names))

    async def _ensure_shown(self, *keys: str) -> None:
        """Returns once the watch has shown those of these records that are there."""
        # Percent-encoded. There is no record at a longer key, and the registry would refuse to look
        # for the others with it.
        possible = [key for key in keys if len(key) <= KEY_BYTES_MAX]
        if not possible:
            return
        try:
            entries = (await self._registry.read(possible)).entries
        except RegistryUnavailableError as error:
            raise registry_away() from error
        if entries:
            try:
                async with asyncio.timeout(WATCH_LAG_S_MAX):
                    await self.wait_shown(max(entry.revision for entry in entries))
            except TimeoutError:
                raise registry_away() from None


def binding_order(binding: BindingRecord) -> tuple[str, str, bool, str, str]:
    return (
        binding.source,
        binding.destination,
        binding.to_exchange,
        binding.routing_key,
        binding.key,
    )


def no_vhost(name: str) -> BrokerError:
    return BrokerError(Reason.VHOST_NOT_FOUND, f"there is no vhost {name!r}", vhost=name)
