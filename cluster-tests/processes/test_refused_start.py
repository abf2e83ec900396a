"""Nodes that must not start: one line that says why, and exit code 1."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from etcd_server import free_ports
from loops import run
from nemesis import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def refused(of: Cluster, node: str, **settings: object) -> str:
    """The one line with which the node ends, at once."""
    ended = subprocess.run(
        of.command(node, **settings), capture_output=True, text=True, timeout=40, check=False
    )
    assert ended.returncode == 1, (ended.returncode, ended.stderr)
    (line,) = ended.stderr.splitlines()
    return line


def test_starts_that_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=("a", "b")) as cluster:
            assert await cluster.stop("b") == 0
            free = f"127.0.0.1:{free_ports(1)[0]}"
            elsewhere = {"listen": free, "advertise": free}
            assert "in use" in refused(cluster, "a", **elsewhere)
            # Another node on this node's directory, and on its port.
            assert "in use" in refused(cluster, "b", data=cluster.data("a"), **elsewhere)
            taken = refused(cluster, "b", listen=cluster.addresses["a"])
            assert "the port is taken" in taken
            assert cluster.addresses["a"] in taken
            wrong = refused(cluster, "b", cluster="another", **elsewhere)
            assert "the registry is of cluster 'ringmq', not 'another'" in wrong
            # A directory of another cluster, and of another node.
            await cluster.stop("a")
            registry = f"sqlite:///{tmp_path / 'other.db'}"
            line = refused(cluster, "a", registry=registry)
            assert "of cluster" in line
            line = refused(cluster, "b", data=cluster.data("a"), **elsewhere)
            assert "node 'a' of cluster" in line
            shutil.rmtree(cluster.data("a"))
            cluster.data("a").write_text("a file, where a directory should be")
            assert str(cluster.data("a")) in refused(cluster, "a")
            missing = refused(cluster, "a", registry="etcd://127.0.0.1:1/x", data=tmp_path / "new")
            assert "registry etcd://127.0.0.1:1/x" in missing
            # The refused starts have not harmed the cluster. This one notices its lost disk.
            cluster.expect_log("may lack confirmed messages")
            cluster.data("a").unlink()
            await cluster.start("a")

    run(story())
