"""A disk that stops answering while its process and its network are well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chaos.disks import Disks, NoDisksError
from loops import run
from nemesis import NODES, Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DISK_TIMEOUT_S = 2.0
HUNG = "has not come back"
# The node leaves its rings, a mirror takes over, the client finds it.
GOES_ON_S_MAX = DISK_TIMEOUT_S + 6.0


@pytest.mark.parametrize("in_place", [False, True], ids=["in a thread", "in place"])
def test_a_master_whose_disk_hangs_gives_way(tmp_path: Path, in_place: bool) -> None:
    """Its lease is renewed over a network that is well; it must not stay master for that. What
    it had confirmed is with the others. Once its disk answers, and it is started again if it had
    given its disk up, it is a mirror that has everything."""

    async def story(disks: Disks) -> None:
        cluster = Cluster(
            tmp_path,
            data_of=disks.data,
            disk_timeout_s=DISK_TIMEOUT_S,
            sync_in_place_bytes_max=16 << 10 if in_place else 0,
        )
        async with cluster, asyncio.timeout(80):
            failed = f"the store has failed, this node leaves its rings: .*{HUNG}"
            # On a slow disk, threads sync everything in either case.
            (cluster.allow_log if in_place else cluster.expect_log)(failed)
            await cluster.declare("q")
            await cluster.wait_synchronised("q")
            async with cluster.publishing("q") as load:
                await load.confirms(200)
                master = await cluster.master_of("q")
                others = cluster.others(master)
                await asyncio.to_thread(disks.freeze, master)
                try:

                    async def has_given_way() -> bool:
                        async with cluster.client(*others) as client:
                            return (await client.queue("q")).master in others

                    await until(has_given_way, "a mirror is master", within_s=GOES_ON_S_MAX)
                    await load.confirms(500, within_s=GOES_ON_S_MAX)
                    # The ring may be quicker than the node itself to find the disk out.
                    if not in_place:
                        await until(
                            lambda: HUNG in cluster.log(master, lines=1_000),
                            "the node gives its disk up",
                            within_s=GOES_ON_S_MAX,
                        )
                finally:
                    await asyncio.to_thread(disks.thaw, master)

                async def is_back_or_has_given_up() -> bool:
                    if HUNG in cluster.log(master, lines=1_000):
                        return True
                    async with cluster.client() as client:
                        ring = (await client.queue("q")).ring
                    return sum(each.synchronised for each in ring) == len(NODES)

                # It may give up in the moment in which its disk answers again.
                await until(is_back_or_has_given_up, "the node is back, or has given up")
                if HUNG in cluster.log(master, lines=1_000):
                    await cluster.restart(master)
                await cluster.wait_synchronised("q")
            assert load.errors == []
            (await cluster.drained("q")).judge(load)
            await cluster.wait_equal("q")

    try:
        with Disks(tmp_path, NODES) as disks:
            if not disks.can_freeze:
                pytest.skip("no loop devices here: a disk can't be frozen")
            run(story(disks))
    except NoDisksError as error:
        pytest.skip(str(error))
