"""The keeper of the topology: writes the cluster's life, and removes records that are dead.

A binding dies with either of its ends, an exchange with its vhost, with its last binding
(`auto_delete`) or with the cluster's life (transient ones). Routing has left it out from that
moment. Its record is removed here: by the node that deleted its end, or, if that one has died, by
another. Every node looks, after a time that grows with its rank among the nodes that are up, so
usually one of them does the work.

Before anything is removed the registry itself is asked. This node's watches may be behind it: a
queue that isn't in the catalogue yet isn't gone. Ids never come back, so a binding whose end is
gone once is dead for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from ringmq_gm import Group
from ringmq_gm.registry.base import (
    CommitUnknownError,
    Delete,
    Guard,
    Put,
    Registry,
    RegistryError,
)
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.topology.changing import TOGETHER_MAX, TopologyChanges
from ringmq_node.broker.topology.life import LIFE_KEY, ClusterLife, next_life
from ringmq_node.broker.topology.topology import Topology
from ringmq_node.model.names import shown, vhost_of
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import RecordError, decode_entry, queue_key
from ringmq_node.model.topology import (
    BindingRecord,
    ExchangeRecord,
    TopologyRecordError,
    exchange_key,
    new_topology_id,
    vhost_key,
)

logger = logging.getLogger(__name__)

# Time between two looks. They cost nothing while nothing is suspect.
LOOK_S = 0.5
# How much longer each further node waits before it removes what is dead.
RANK_S = 2.0


class TopologyKeeper:
    """See the module. `belonging` are the nodes of the cluster, as an operator has it."""

    def __init__(
        self,
        registry: Registry,
        topology: Topology,
        catalogue: QueueCatalogue,
        changes: TopologyChanges,
        group: Group,
        belonging: Callable[[], Collection[str]],
    ) -> None:
        self._registry = registry
        self._topology = topology
        self._catalogue = catalogue
        self._changes = changes
        self._group = group
        self._belonging = belonging
        # Since when there is something to remove, on the event loop's clock.
        self._suspect_since: float | None = None

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.keep_life()
                await self._sweep_in_turn()
            except (RegistryError, BrokerError) as error:
                logger.info("topology: not swept yet: %s", error)

    # --- the cluster's life ---

    async def keep_life(self) -> None:
        """Writes the life's record if it is on this node to do so. Raises `RegistryError`."""
        if self._next_life(self._topology.life) is None:
            return
        entry = await self._registry.get(LIFE_KEY)
        try:
            known = None if entry is None else ClusterLife.decode(entry.value)
        except TopologyRecordError as error:
            # Begun anew: what can't be read says nothing.
            logger.error("%s", error)
            known = None
        life = self._next_life(known)
        if life is None:
            return
        guard = Guard(LIFE_KEY, 0 if entry is None else entry.revision)
        try:
            revision = await self._registry.commit([guard], [Put(LIFE_KEY, life.encode())])
        except CommitUnknownError:
            return
        if revision is not None and (known is None or known.id != life.id):
            logger.info("a new life of the cluster begins: transient exchanges are gone")

    def _next_life(self, known: ClusterLife | None) -> ClusterLife | None:
        alive: Mapping[str, int] = {
            node: record.incarnation for node, record in self._group.nodes().items()
        }
        return next_life(
            known,
            self._group.me,
            alive=alive,
            latest=self._group.known_incarnation,
            belongs=self._belonging(),
            new_id=new_topology_id(),
        )

    # --- what is dead ---

    async def _sweep_in_turn(self) -> None:
        """Raises `RegistryError` or `BrokerError`; what is suspect is looked at again then."""
        topology = self._topology
        # Most queues have no bindings, and what came late may be there by now.
        topology.suspect_ends = set(filter(topology.seems_dead, topology.suspect_ends))
        if not topology.suspect_ends and not topology.suspect_exchanges:
            self._suspect_since = None
            return
        now = asyncio.get_running_loop().time()
        self._suspect_since = self._suspect_since or now
        rank = sum(node < self._group.me.node for node in self._group.nodes())
        if now - self._suspect_since >= rank * RANK_S:
            await self.sweep()

    async def sweep(self) -> None:
        """Looks at all that is suspect now."""
        topology = self._topology
        while topology.suspect_ends:
            end = next(iter(topology.suspect_ends))
            bindings = dict(topology.bindings_of(end))
            if bindings and await self._is_gone(end, next(iter(bindings.values()))):
                keys = [*bindings]
                for first in range(0, len(keys), TOGETHER_MAX):
                    chunk = keys[first : first + TOGETHER_MAX]
                    # Without guards: they are dead for good.
                    await self._registry.commit([], [Delete(key) for key in chunk])
                    # Not by the commit's revision: if another node was first, no change of the
                    # topology has it.
                    await topology.wait_unbound(end, chunk)
                logger.info("%d bindings went with one of their ends", len(keys))
            topology.suspect_ends.discard(end)
        while topology.suspect_exchanges:
            name = next(iter(topology.suspect_exchanges))
            hidden = topology.hidden_exchange(name)
            if hidden is not None:
                await self._remove_hidden(hidden)
            else:
                await self._changes.delete_if_unbound(name)
            topology.suspect_exchanges.discard(name)

    async def _is_gone(self, end: str, binding: BindingRecord) -> bool:
        """Whether the registry has no queue or exchange with this id any more, which is one of
        the binding's ends."""
        is_source = binding.source_id == end
        name = binding.source if is_source else binding.destination
        if is_source or binding.to_exchange:
            return await self._is_exchange_gone(name, end)
        entry = await self._registry.get(queue_key(name))
        try:
            return entry is None or decode_entry(entry.key, entry.value).id != end
        except RecordError:
            return False

    async def _is_exchange_gone(self, name: str, exchange_id: str) -> bool:
        vhost_id, colon, _ = exchange_id.partition(":")
        if colon:
            known = next((each for each in self._topology.vhosts() if each.id == vhost_id), None)
            if known is not None:
                return False
            entry = await self._registry.get(vhost_key(vhost_of(name)))
            return entry is None or vhost_id.encode() not in entry.value
        entry = await self._registry.get(exchange_key(name))
        try:
            return entry is None or ExchangeRecord.decode(entry.key, entry.value).id != exchange_id
        except TopologyRecordError:
            return False

    async def _remove_hidden(self, exchange: ExchangeRecord) -> None:
        """Removes an exchange whose vhost or life is over, if the registry says so, too."""
        vhost = vhost_of(exchange.name)
        entry = await self._registry.get(exchange.key)
        if entry is None:
            return
        vhost_entry = await self._registry.get(vhost_key(vhost))
        life = await self._registry.get(LIFE_KEY)
        is_over = bool(exchange.life) and (
            life is not None and ClusterLife.decode(life.value).id != exchange.life
        )
        has_no_vhost = vhost != "/" and vhost_entry is None
        if is_over or has_no_vhost:
            guards = [Guard(entry.key, entry.revision)]
            if has_no_vhost:
                guards.append(Guard(vhost_key(vhost), 0))
            revision = await self._registry.commit(guards, [Delete(entry.key)])
            await self._topology.wait_shown(revision or 0)
            logger.info("exchange %s: gone with its %s", shown(exchange.name), _what(is_over))


def _what(is_over: bool) -> str:
    return "cluster's life" if is_over else "vhost"
