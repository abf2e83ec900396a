"""Nodes that must not start: one line that says why, and exit code 1."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from commands import Ended, ended
from etcd_server import free_ports
from loops import run
from nemesis import Cluster
from nemesis.command_line import ringmq_ended

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


# A node waits half a minute for its registry.
IMPATIENT = """
from ringmq_node import identity
from ringmq_node.cli import main

identity.REGISTRY_WAIT_S = 0.5
main()
"""


def the_line_of(ended: Ended) -> str:
    assert ended.exit_code == 1, ended
    (line,) = ended.err.splitlines()
    return line


async def refused(of: Cluster, node: str, **settings: object) -> str:
    """The one line with which the node ends, at once."""
    return the_line_of(await ringmq_ended(*of.words(node, **settings)))


async def refused_program(*command: str) -> str:
    """The same of a program of its own, which nobody has forked."""
    return the_line_of(await ended(*command))


def test_starts_that_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=("a", "b")) as cluster:
            assert await cluster.stop("b") == 0
            free = f"127.0.0.1:{free_ports(1)[0]}"
            elsewhere = {"listen": free, "advertise": free}
            missing = cluster.words("b", registry="etcd://127.0.0.1:1/x", data=tmp_path / "new")
            same, foreign, taken, wrong, alone = await asyncio.gather(
                refused_program(*cluster.command("a", **elsewhere)),
                # Another node on this node's directory, and on its port.
                refused(cluster, "b", data=cluster.data("a"), **elsewhere),
                refused(cluster, "b", listen=cluster.addresses["a"]),
                refused(cluster, "b", cluster="another", data=tmp_path / "other", **elsewhere),
                refused_program(sys.executable, "-c", IMPATIENT, *missing),
            )
            assert "in use" in same
            assert "in use" in foreign
            assert "the port is taken" in taken
            assert cluster.addresses["a"] in taken
            assert "the registry is of cluster 'ringmq', not 'another'" in wrong
            assert "registry etcd://127.0.0.1:1/x" in alone
            # A directory of another cluster, and of another node.
            await cluster.stop("a")
            registry = f"sqlite:///{tmp_path / 'other.db'}"
            line = await refused(cluster, "a", registry=registry)
            assert "of cluster" in line
            line = await refused(cluster, "b", data=cluster.data("a"), **elsewhere)
            assert "node 'a' of cluster" in line
            shutil.rmtree(cluster.data("a"))
            cluster.data("a").write_text("a file, where a directory should be")
            assert str(cluster.data("a")) in await refused(cluster, "a")
            # The refused starts have not harmed the cluster. This one notices its lost disk.
            cluster.expect_log("may lack confirmed messages")
            cluster.data("a").unlink()
            await cluster.start("a")

    run(story())
