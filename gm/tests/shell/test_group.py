"""Groups over real sockets: one process, several nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from group_harness import local_cluster, until


def test_what_the_master_multicasts_is_delivered_everywhere_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with local_cluster(tmp_path, "abc") as cluster:
            rings = await cluster.create_ring("r", "abc")
            apps = cluster.apps["r"]
            await until(lambda: rings["a"].role.value == "master")
            for index in range(1000):
                assert rings["a"].multicast(b"%d" % index) == index + 1
                assert len(apps["a"].ops) == index + 1
            await until(lambda: apps["a"].confirmed[1] == 1000)
            assert apps["b"].ops == apps["a"].ops
            assert apps["c"].ops == apps["a"].ops

    asyncio.run(main())
