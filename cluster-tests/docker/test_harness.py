"""The cluster helper itself, with members that only answer: each verb does what it says.

The broker's scenarios stand on these: a cut that leaks, or a kill that loses the volume, would make
them prove nothing.
"""

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import docker
import pytest
from children import child_environment
from containers.cluster import Cluster
from containers.container import ClusterError, wait_until
from containers.echo import ask, echo_nodes, sees
from containers.engine import RUN_LABEL, labels_of, new_run_id, remove_dead_runs
from containers.networks import REGISTRY, RING
from containers.workload import ETCD, ETCD_PORT, Workload

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def started(base_image: str, etcd_image: str) -> Iterator[Cluster]:
    with Cluster(echo_nodes(base_image), etcd_image=etcd_image) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """The module's cluster; the faults of earlier tests are undone."""
    started.heal()
    return started


def boots(cluster: Cluster, name: str) -> int:
    return ask(cluster.address(name))[1]


def sees_registry(cluster: Cluster, name: str) -> bool:
    return sees(cluster.address(name), ETCD, ETCD_PORT, "health")


def what_exists(client: docker.DockerClient, run_id: str) -> list[str]:
    label = f"{RUN_LABEL}={run_id}"
    found = [
        *(str(c.name) for c in client.containers.list(all=True, filters={"label": label})),
        *(str(n.name) for n in client.networks.list(filters={"label": label})),
        *(str(v.name) for v in client.volumes.list(filters={"label": label})),
    ]
    return sorted(found)


def test_each_node_sees_the_others_and_the_registry(cluster: Cluster) -> None:
    for name in cluster.nodes:
        assert ask(cluster.address(name))[0] == name
        assert sees_registry(cluster, name)
        for other in cluster.nodes:
            if other != name:
                assert sees(cluster.address(name), other)


def test_a_killed_node_comes_back_with_its_data_at_its_address(cluster: Cluster) -> None:
    before, address = boots(cluster, "node1"), cluster.address("node1")
    cluster.kill("node1")
    assert cluster.status("node1") == "exited"
    with pytest.raises(OSError, match=r"refused|reset"):
        ask(address)
    assert not sees(cluster.address("node2"), "node1")
    cluster.start("node1")
    assert ask(address) == ("node1", before + 1)
    # While node1 was dead, node2's kernel has noted that nobody answers at its address.
    sees_it = partial(sees, cluster.address("node2"), "node1")
    wait_until(sees_it, "node2 sees node1 again", deadline_s=15)


def test_a_stopped_node_gets_its_sigterm(cluster: Cluster) -> None:
    cluster.stop("node2", grace_s=20)
    # 0 is the program's own answer to SIGTERM; SIGKILL after the grace would make it 137.
    assert cluster.exit_code("node2") == 0
    cluster.start("node2")


def test_a_paused_node_is_silent_and_then_goes_on_as_it_was(cluster: Cluster) -> None:
    before = boots(cluster, "node1")
    cluster.pause("node1")
    assert cluster.status("node1") == "paused"
    with pytest.raises(TimeoutError):
        ask(cluster.address("node1"), deadline_s=0.5)
    assert not sees(cluster.address("node2"), "node1")
    cluster.unpause("node1")
    assert boots(cluster, "node1") == before


def test_a_node_cut_from_ring_and_registry_keeps_its_clients(cluster: Cluster) -> None:
    """In both directions; and a client's open connection goes on."""
    connection = http.client.HTTPConnection(cluster.address("node1"), timeout=5)
    connection.request("GET", "/")
    connection.getresponse().read()
    assert connection.sock is not None
    local_port = connection.sock.getsockname()[1]

    cluster.disconnect("node1")
    connection.request("GET", "/")
    assert connection.getresponse().read()
    assert connection.sock.getsockname()[1] == local_port
    connection.close()
    assert ask(cluster.address("node1"))[0] == "node1"
    assert not sees_registry(cluster, "node1")
    assert not sees(cluster.address("node1"), "node2")
    assert not sees(cluster.address("node2"), "node1")
    assert sees(cluster.address("node2"), "node3")
    assert sees_registry(cluster, "node2")

    cluster.connect("node1")
    assert sees(cluster.address("node1"), "node2")
    assert sees(cluster.address("node2"), "node1")
    assert sees_registry(cluster, "node1")


@pytest.mark.parametrize(
    ("cut", "ring", "registry"), [(RING, False, True), (REGISTRY, True, False)], ids=str
)
def test_ring_and_registry_are_cut_one_by_one(
    cluster: Cluster, cut: str, ring: bool, registry: bool
) -> None:
    cluster.disconnect("node3", cut)
    assert sees(cluster.address("node3"), "node1") is ring
    assert sees(cluster.address("node1"), "node3") is ring
    assert sees_registry(cluster, "node3") is registry


def test_only_ring_and_registry_can_be_cut(cluster: Cluster) -> None:
    """The engine moves a published port to another network: its clients can't be cut off so."""
    with pytest.raises(ValueError, match="clients"):
        cluster.disconnect("node1", "clients")


def test_a_cut_outlives_a_restart_of_the_node(cluster: Cluster) -> None:
    cluster.disconnect("node1")
    cluster.kill("node1")
    cluster.start("node1")
    assert not sees(cluster.address("node2"), "node1")
    cluster.connect("node1")
    assert sees(cluster.address("node2"), "node1")


def test_all_die_at_once_and_come_back_with_their_data(cluster: Cluster) -> None:
    before = {name: boots(cluster, name) for name in cluster.nodes}
    etcd_started = cluster.started_at(ETCD)
    cluster.restart_all()
    assert {name: boots(cluster, name) for name in cluster.nodes} == {
        name: count + 1 for name, count in before.items()
    }
    assert cluster.started_at(ETCD) == etcd_started
    cluster.restart_all(registry=True)
    assert cluster.started_at(ETCD) != etcd_started
    assert all(sees_registry(cluster, name) for name in cluster.nodes)


def test_heal_undoes_everything(cluster: Cluster) -> None:
    cluster.pause("node1")
    cluster.kill("node2")
    cluster.disconnect("node3")
    cluster.pause(ETCD)
    cluster.heal()
    for name in cluster.nodes:
        assert sees_registry(cluster, name)
        assert all(sees(cluster.address(name), other) for other in cluster.nodes if other != name)


def test_a_client_in_a_container_finds_the_nodes_by_their_advertised_names(
    cluster: Cluster,
) -> None:
    """Also the name of a node that is cut off: that is how its clients keep it."""
    program = (
        "import sys, urllib.request as request\n"
        "for name in sys.argv[1:]:\n"
        "    with request.urlopen(f'http://{name}:7800/', timeout=5) as answer:\n"
        "        print(answer.read().decode())\n"
    )
    cluster.disconnect("node1")
    output = cluster.run_client(["python3", "-c", program, *cluster.nodes], deadline_s=30)
    assert output.exit_code == 0, output.text
    assert [f'"name": "{name}"' in output.text for name in cluster.nodes] == [True] * 3


def test_a_client_that_hangs_is_ended_and_removed(
    engine: docker.DockerClient, cluster: Cluster
) -> None:
    before = what_exists(engine, cluster.run_id)
    with pytest.raises(ClusterError, match="not within"):
        cluster.run_client(["sleep", "60"], deadline_s=0.5)
    assert what_exists(engine, cluster.run_id) == before


def test_commands_and_logs_reach_inside(cluster: Cluster) -> None:
    assert cluster.exec("node1", ["cat", "/proc/1/cmdline"]).text.startswith("python3")
    assert cluster.exec("node1", ["false"]).exit_code == 1
    assert "listening" in cluster.logs("node1")
    cluster.disconnect("node2", RING)
    report = cluster.report()
    assert "--- node2: running, cut from ring" in report
    assert f"--- {ETCD}: running" in report


def test_nothing_is_left_after_an_exception(
    engine: docker.DockerClient, base_image: str, etcd_image: str
) -> None:
    cluster = Cluster(echo_nodes(base_image), etcd_image=etcd_image, nodes=("node1",))
    containers, networks, volumes = 2, 4, 2

    def interrupted() -> None:
        with cluster:
            assert len(what_exists(engine, cluster.run_id)) == containers + networks + volumes
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert what_exists(engine, cluster.run_id) == []


def test_a_member_that_exits_at_once_is_reported_with_its_last_words(
    engine: docker.DockerClient, base_image: str, etcd_image: str
) -> None:
    broken = Workload(
        base_image, 7800, lambda address: "silent", command=("sh", "-c", "echo my last words")
    )
    cluster = Cluster(broken, etcd_image=etcd_image, nodes=("node1",))
    with pytest.raises(ClusterError, match=r"(?s)node1 has exited.*my last words"):
        cluster.__enter__()
    assert what_exists(engine, cluster.run_id) == []


def test_what_a_killed_run_left_is_swept_up_by_the_next(engine: docker.DockerClient) -> None:
    """A process that makes a volume and dies by SIGKILL: nobody else cleans up after it."""
    program = (
        "import os, docker, signal\n"
        "from containers.engine import labels_of\n"
        "client = docker.from_env()\n"
        "client.volumes.create('ringmq-left-behind', labels=labels_of('left-behind'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program],
        env=child_environment(),
        check=False,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    alive = new_run_id()
    volume = engine.volumes.create(f"ringmq-{alive}", labels=labels_of(alive))
    try:
        assert remove_dead_runs(engine) == ["left-behind"]
        assert what_exists(engine, "left-behind") == []
        assert what_exists(engine, alive) == [f"ringmq-{alive}"]
    finally:
        volume.remove()
