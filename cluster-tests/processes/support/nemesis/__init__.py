"""Whole clusters of real processes: faults, clients beside them, and the judgement at the end.

@scenario(deadline_s=30)
async def test_killed_master(cluster: Cluster) -> None:
    async with cluster.publishing("q") as load:
        await load.confirms(500)
        cluster.kill(await cluster.master_of("q"))
        await load.confirms(500)
    (await cluster.drained("q")).judge(load)
"""

from waiting import until

from nemesis.cluster import NODES, Cluster
from nemesis.oracle import Delivered
from nemesis.scenario import scenario
from nemesis.workload import Consuming, Publishing

__all__ = ["NODES", "Cluster", "Consuming", "Delivered", "Publishing", "scenario", "until"]
