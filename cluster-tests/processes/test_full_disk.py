"""A disk without room, a process without file descriptors: the node leaves its rings, the others go
on, nothing confirmed is lost. It comes back by itself when there is enough of it again.

The disks are tmpfs of a few MiB, which only root may mount.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loops import run
from nemesis import Cluster, until

import ringmq

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DISK_MIB = 12
BODY_BYTES = 8000
FULL = "the store has failed, this node leaves its rings: .*No space left on device"


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a small disk at `folder` for as long as the block lasts."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("place", [0, 2], ids=["the master's", "a mirror's"])
def test_one_full_disk(tmp_path: Path, place: int) -> None:
    """One node's disk is full: the publisher notices nothing. With room again it comes back."""

    async def story(name: str) -> None:
        async with Cluster(tmp_path) as cluster, asyncio.timeout(60):
            cluster.expect_log(FULL)
            await cluster.declare("q")
            info = await cluster.wait_synchronised("q")
            assert info.ring[place].node == name
            filler = tmp_path / name / "filler"
            async with cluster.publishing("q", size_bytes=BODY_BYTES) as load:
                await load.confirms(200)
                filler.write_bytes(b"x" * (DISK_MIB - 6) * 1024 * 1024)

                async def is_out() -> bool:
                    async with cluster.client(*cluster.others(name)) as client:
                        ring = (await client.queue("q")).ring
                        return name not in [replica.node for replica in ring]

                await until(is_out, f"{name} is out of the ring", within_s=20)
                await load.confirms(200)
            assert load.errors == []
            assert cluster.is_running(name)
            async with cluster.client(*cluster.others(name)) as client:
                assert (await client.queue("q")).state is ringmq.QueueState.RUNNING
            async with cluster.client(name) as client:
                status = await client.cluster_status(with_resources=True)
                (own,) = [each.resources for each in status.nodes if each.node == name]
                assert own is not None
                assert "No space left" in str(own.store_failure)
            found = await cluster.drained("q")
            found.judge(load)
            assert len(found.positions) >= len(load.confirmed)
            pid = cluster.pid(name)
            filler.unlink()
            await cluster.wait_synchronised("q")
            await cluster.wait_equal("q")
            assert cluster.is_running(name)
            assert cluster.pid(name) == pid

    name = "abc"[place]
    with small_disk(tmp_path / name):
        run(story(name))


def test_every_disk_full(tmp_path: Path) -> None:
    """The only replica's disk fills up. Messages under way end as unknown, with the reason; later
    publishers are refused with it. With room again, every confirmed message is there."""

    async def story() -> None:
        async with Cluster(tmp_path, nodes=("a",)) as cluster, asyncio.timeout(60):
            cluster.expect_log(FULL)
            await cluster.declare("q")
            filler = tmp_path / "a" / "filler"
            filler.write_bytes(b"x" * (DISK_MIB - 4) * 1024 * 1024)
            async with cluster.publishing("q", size_bytes=BODY_BYTES, deadline_s=1.0) as load:
                await until(lambda: len(load.errors) > 0, "the publisher is told", within_s=20)
            assert all("No space left" in str(error) for error in load.errors), load.errors
            assert len(load.confirmed) > 0
            async with cluster.client() as client:
                with pytest.raises(ringmq.DiskFullError):
                    await client.publisher("q").open()
            filler.unlink()
            # Nobody starts the node again.
            await cluster.wait_synchronised("q")
            (await cluster.drained("q")).judge(load)

    with small_disk(tmp_path / "a"):
        run(story())


DESCRIPTORS_S = 3.0


def test_a_few_seconds_without_file_descriptors(tmp_path: Path) -> None:
    """The master's process may open nothing for a while. It doesn't stay without its rings."""

    async def story() -> None:
        async with Cluster(tmp_path) as cluster, asyncio.timeout(100):
            cluster.expect_log("the store has failed, this node leaves its rings: .*open files")
            cluster.allow_log("Too many open files")
            await cluster.declare("q")
            master = (await cluster.wait_synchronised("q")).master
            pid = cluster.pid(master)
            async with cluster.publishing("q", size_bytes=BODY_BYTES) as load:
                await load.confirms(200)
                before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
                # Its files are open already. One that has to be made is not.
                async with cluster.client(*cluster.others(master)) as client:
                    await client.declare_queue("r", deadline_s=20.0)
                    async with client.publisher("r") as publisher:
                        await publisher.publish(b"x")
                await load.confirms(200)
                await asyncio.sleep(DESCRIPTORS_S)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                await cluster.wait_synchronised("q")
                await cluster.wait_synchronised("r")
                await load.confirms(200)
            assert load.errors == []
            assert cluster.is_running(master)
            (await cluster.drained("q")).judge(load)
            await cluster.wait_equal("q")

    run(story())
