"""A node that was forgotten while it lived belongs to the cluster again.

An operator may forget a node that holds no lease. Its process may live all the same: cut off from
the registry, or on a machine that was paused. When it is back it registers itself and joins its
rings, in the same life. If it didn't belong to the cluster, it could not be drained, queues would
count on one node less, and rings that begin again would take its disk for lost, although it serves.
"""

from __future__ import annotations

import asyncio
import logging

from ringmq_gm.registry.base import Registry, RegistryError
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings, enrol

logger = logging.getLogger(__name__)

LOOK_S = 1.0


async def keep_belonging(registry: Registry, settings: ClusterSettings, cluster: Cluster) -> None:
    """Looks until cancelled."""
    me = cluster.me.node
    while True:
        await asyncio.sleep(LOOK_S)
        # Only once its lease is there: nobody may be forgotten who has one.
        if me in settings.nodes or not cluster.registry_available:
            continue
        try:
            await enrol(registry, me)
        except RegistryError as error:
            logger.info("node %s is forgotten, and not enrolled again yet: %s", me, error)
        else:
            logger.warning("node %s was forgotten while it lived: it belongs to the cluster", me)
