"""The parts of a node's topology, put together."""

from __future__ import annotations

from contextlib import suppress

from ringmq_gm import Group
from ringmq_gm.registry.base import Registry, RegistryError
from ringmq_node.broker.catalogue import QueueCatalogue, Reconcile, Touched
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.deleting import Deleting
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.topology.changing import TopologyChanges
from ringmq_node.broker.topology.service import TopologyService
from ringmq_node.broker.topology.sweeping import TopologyKeeper
from ringmq_node.broker.topology.topology import Topology
from ringmq_node.replica.hosting import Spawn


class TopologyParts:
    def __init__(
        self,
        registry: Registry,
        catalogue: QueueCatalogue,
        group: Group,
        settings: ClusterSettings,
    ) -> None:
        self.topology = Topology(registry, catalogue)
        self._registry = registry
        self._catalogue = catalogue
        self._settings = settings
        self._changes = TopologyChanges(registry, self.topology, catalogue)
        self._keeper = TopologyKeeper(
            registry, self.topology, catalogue, self._changes, group, lambda: settings.nodes
        )

    def service(self, deleting: Deleting, gate: NodeGate) -> TopologyService:
        return TopologyService(
            self._registry,
            self.topology,
            self._changes,
            self._catalogue,
            deleting,
            gate,
            self._settings,
        )

    def after(self, reconcile: Reconcile) -> Reconcile:
        """For the catalogue: `reconcile`, and then the topology hears of queues that are gone."""

        async def both(touched: Touched) -> None:
            await reconcile(touched)
            self.topology.queues_touched(touched)

        return both

    async def begin(self, spawn: Spawn) -> None:
        """Returns once the node knows the exchanges, and in which life of the cluster it is; if
        the registry is away, the latter comes later."""
        await self.topology.loaded.wait()
        with suppress(RegistryError):
            await self._keeper.keep_life()
        spawn(self._keeper.run(), "topology keeper")
