"""Two fake nodes of one cluster, and a client of them.

async with two_nodes() as (client, one, two):
    one.cluster.master = two.address
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fake_broker import FakeNode
from fake_cluster import Cluster

import ringmq


@asynccontextmanager
async def two_nodes(*, seeds: int = 2) -> AsyncIterator[tuple[ringmq.Client, FakeNode, FakeNode]]:
    """The client knows the first `seeds` of them when it begins."""
    cluster = Cluster()
    async with (
        FakeNode(cluster) as one,
        FakeNode(cluster) as two,
        ringmq.connect([one.address, two.address][:seeds]) as client,
    ):
        yield client, one, two
