"""Processes are started, found again by pid and start time, and ended; no others are touched."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from loops import run

from ringmq_node.cli.cluster import processes
from ringmq_node.cli.cluster.local import LocalCluster, LocalClusterError

SLEEP = ["-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)",
]
# As a node does that has many queues, and then no more.
OPENING = [
    "-c",
    "import time\n"
    "for done in range(30): print(f'opening under way: {done} of 30 queues, 1.0 s', flush=True); "
    "time.sleep(0.1)\n"
    "time.sleep(60)",
]


def start(arguments: list[str], log: Path) -> processes.Process:
    process = processes.spawn(arguments, log)
    deadline = time.monotonic() + 20
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline, "it doesn't start"
        time.sleep(0.01)
    return process


def test_a_process_ends_when_it_is_told_to(tmp_path: Path) -> None:
    process = start(SLEEP, tmp_path / "log")
    assert process.alive
    assert os.getsid(process.pid) == process.pid
    assert processes.stop([process], timeout_s=20) == []
    assert not process.alive


def test_one_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    process = start(DEAF, tmp_path / "log")
    assert processes.stop([process], timeout_s=0.1) == [process]
    # A killed process is gone when the kernel has ended it.
    deadline = time.monotonic() + 20
    while process.alive:
        assert time.monotonic() < deadline, "it isn't killed"
        time.sleep(0.01)


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(tmp_path: Path) -> None:
    process = start(SLEEP, tmp_path / "log")
    path = tmp_path / "pid"
    try:
        processes.write_pid_file(path, process)
        assert processes.read_pid_file(path) == process
        other = processes.Process(process.pid, "1")
        processes.write_pid_file(path, other)
        assert processes.read_pid_file(path) is None
        other.send(signal.SIGKILL)
        assert process.alive
        path.write_text("{")
        assert processes.read_pid_file(path) is None
    finally:
        processes.stop([process], timeout_s=20)


def test_a_cluster_is_known_by_its_directory(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "a b", nodes=3)
    again = LocalCluster.create(tmp_path / "a b", nodes=3)
    opened = LocalCluster.open(tmp_path / "a b")
    assert made.nodes == again.nodes == opened.nodes
    assert made.seeds == "127.0.0.1:7801,127.0.0.1:7802,127.0.0.1:7803"
    assert made.registry == f"sqlite://{tmp_path}/a%20b/registry.db"
    moved = LocalCluster.create(tmp_path / "a b", nodes=3, base_port=9000)
    assert moved.seeds == "127.0.0.1:9000,127.0.0.1:9001,127.0.0.1:9002"
    with pytest.raises(LocalClusterError, match="a cluster of 3 nodes"):
        LocalCluster.create(tmp_path / "a b", nodes=4)
    assert made.stop() == ([], [])


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="no cluster"):
        LocalCluster.open(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(LocalClusterError, match="format 2"):
        LocalCluster.open(tmp_path)
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(LocalClusterError, match="damaged"):
        LocalCluster.open(tmp_path)


@pytest.mark.slow
def test_nodes_that_go_on_opening_queues_are_waited_for(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, nodes=1, base_port=0)
    node = cluster.nodes[0].node
    process = start(OPENING, cluster.log(node))
    processes.write_pid_file(tmp_path / "run" / f"{node}.pid", process)
    try:
        with pytest.raises(LocalClusterError, match="isn't ready after 2 s"):
            run(cluster.wait_ready(timeout_s=2.0))
        assert "opening under way: 29 of 30" in cluster.last_words(node)
    finally:
        cluster.stop()


def test_a_node_that_is_killed_and_started_again_leaves_no_zombie(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, nodes=1, base_port=0)
    try:
        first = cluster.start("node1")
        cluster.kill("node1")
        deadline = time.monotonic() + 20
        while first.alive:
            assert time.monotonic() < deadline, "it isn't killed"
            time.sleep(0.01)
        assert cluster.start("node1") != first
        with pytest.raises(ProcessLookupError):
            os.kill(first.pid, 0)
    finally:
        cluster.stop()
