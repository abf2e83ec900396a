"""A cluster in containers under faults, with clients in containers of their own.

The oracle in one sentence: every confirmed message is delivered, in order, from one position; and
when the faults are over, the ring is whole and its replicas have the same digest.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import loops
import pytest
from containers import traffic
from containers.client import Client, Record
from containers.cluster import Cluster
from containers.networks import REGISTRY, RING
from containers.traffic import WINDOW, Produced, Settings
from containers.workload import ETCD, ringmq_nodes

import ringmq
from ringmq_node.cli.demo.lines import Lines

pytestmark = [pytest.mark.docker, pytest.mark.slow]

QUEUE = "orders"
PROGRAM = "/traffic.py"
FILES = {Path(traffic.__file__): PROGRAM, Path(loops.__file__): "/loops.py"}
# The nodes' default.
RING_TIMEOUT_S = 2.0
# Half of the default: a lease has to lapse in several scenarios, and each then waits half as long.
LEASE_S = 3.0

# Messages per second. With twice as many, seven containers wait for two processors.
RATE = 10_000.0
# From the fault to the first confirm of a new master: the ring's time-out with its jitter, the
# view, and the client's reconnect, on a machine that does other things, too.
FAILOVER_SECONDS_MAX = 10.0
PROGRESS_SECONDS_MAX = 30.0
CLIENT_SECONDS_MAX = 90.0
# In the isolated master's scenarios: publishes of both sides together, and how long one waits for
# its confirm before it turns to the other side.
ISOLATED_COUNT = 100_000
STUCK_SECONDS = 8.0
# Messages per second of each side: slow enough that the cut comes in the middle.
ISOLATED_RATE = 5000.0
# Five leases: no node can renew its own, nor change a view, and messages go on all the same.
REGISTRY_AWAY_SECONDS = 5 * LEASE_S


@pytest.fixture
def cluster(node_image: str, etcd_image: str) -> Iterator[Cluster]:
    # A client gives up on a node after three silent heartbeats; with the default, after 15 s.
    settings = {"RINGMQ_HEARTBEAT_S": "1", "RINGMQ_LEASE_S": f"{LEASE_S:g}"}
    nodes = ringmq_nodes(node_image, settings=settings)
    with Cluster(nodes, etcd_image=etcd_image) as cluster:
        yield cluster


def start_client(
    cluster: Cluster, settings: Settings, *, reach: tuple[str, ...] | None = None
) -> Client:
    command = ["python", PROGRAM, settings.argument()]
    return cluster.client(command, reach=reach, files=FILES)


def seeds_of(*nodes: str) -> str:
    return ",".join(f"{node}:7800" for node in nodes)


def traffic_on(cluster: Cluster, *, rate: float = RATE) -> Client:
    """Publishes and consumes until `finish`; `rate` in messages per second, if they get there."""
    return start_client(
        cluster,
        Settings(
            role="both",
            queue=QUEUE,
            seeds=seeds_of(*cluster.nodes),
            nodes=len(cluster.nodes),
            deadline_s=CLIENT_SECONDS_MAX,
            rate=rate,
        ),
    )


def wait_more(client: Client, *, deadline_s: float = PROGRESS_SECONDS_MAX) -> Record:
    """Return once some message is confirmed that was handed over after this call."""
    called_at = time.time()
    before = client.record().get("confirmed", 0)
    return client.wait_record(
        f"more than {before} confirms",
        lambda record: (
            record.get("given_at", 0.0) > called_at and record["confirmed"] > before + WINDOW
        ),
        deadline_s=deadline_s,
    )


def finish(client: Client) -> Record:
    """Stop publishing; every confirmed message must have come out, once and in order."""
    client.signal("SIGTERM")
    report = client.report(deadline_s=CLIENT_SECONDS_MAX)
    assert report["unconfirmed"] == 0, report
    assert report["confirmed"] == report["published"] == report["survived"], report
    check_judged(report)
    return report


def declare(cluster: Cluster) -> str:
    """Make the queue, with a replica on each node; return its master."""
    seeds = seeds_of(*cluster.nodes)
    made = cluster.run_client(
        ["ringmq", "queue", "declare", QUEUE, "--replicas", "3", "--json", "--seeds", seeds]
    )
    assert made.exit_code == 0, made.text
    master: str = json.loads(made.text)["master"]
    return master


def producer(
    cluster: Cluster,
    name: str,
    first: int,
    count: int,
    *,
    reach: tuple[str, ...],
    confirm_s: float = CLIENT_SECONDS_MAX,
) -> Client:
    """Publishes `count` messages, whose bodies are those from `first` on, to the nodes it reaches.

    It gives up when it has no confirm for `confirm_s`.
    """
    settings = Settings(
        role="publish",
        queue=QUEUE,
        seeds=seeds_of(*reach),
        nodes=len(cluster.nodes),
        deadline_s=CLIENT_SECONDS_MAX,
        count=count,
        rate=ISOLATED_RATE,
        confirm_s=confirm_s,
        producer=name,
        first=first,
    )
    return start_client(cluster, settings, reach=reach)


def drain(cluster: Cluster, at: str, *produced: Produced) -> Record:
    """Take everything out of the replica on `at`, and judge it."""
    settings = Settings(
        role="drain",
        queue=QUEUE,
        seeds=seeds_of(*cluster.nodes),
        nodes=len(cluster.nodes),
        deadline_s=CLIENT_SECONDS_MAX,
        at=at,
        produced=produced,
    )
    with start_client(cluster, settings) as client:
        report = client.report(deadline_s=CLIENT_SECONDS_MAX)
    assert report["drained_at"] == at
    check_judged(report)
    return report


def ranges(report: Record) -> tuple[tuple[int, int], ...]:
    return tuple((first, last) for first, last in report["ranges"])


def indexes(report: Record) -> Iterator[int]:
    return chain.from_iterable(range(first, last + 1) for first, last in ranges(report))


def check_judged(report: Record) -> None:
    wrong = {name: report[name] for name in ("lost", "duplicated", "reordered", "unexpected")}
    assert not any(wrong.values()), report
    assert len(report["digests"]) == report["synchronised"] == 3, report
    assert len(set(report["digests"].values())) == 1, report


def test_a_killed_master_costs_nothing_and_comes_back(cluster: Cluster) -> None:
    with traffic_on(cluster) as client:
        master = wait_more(client)["master"]
        cluster.kill(master)
        wait_more(client, deadline_s=FAILOVER_SECONDS_MAX)
        cluster.start(master)
        wait_more(client)
        report = finish(client)
    assert report["longest_gap_ms"] < FAILOVER_SECONDS_MAX * 1000


@pytest.mark.parametrize(
    "paused_s",
    [RING_TIMEOUT_S + 2, LEASE_S + 3],
    ids=["longer than the ring's time-out", "longer than the registry's lease"],
)
def test_a_master_that_was_frozen_finds_itself_replaced(cluster: Cluster, paused_s: float) -> None:
    """It goes on in the belief that it is the master, with clients that are still connected."""
    with traffic_on(cluster) as client:
        master = wait_more(client)["master"]
        cluster.pause(master)
        paused_at = time.monotonic()
        wait_more(client, deadline_s=FAILOVER_SECONDS_MAX)
        client.wait_record(
            "the end of the pause",
            lambda record: time.monotonic() > paused_at + paused_s,
            deadline_s=2 * paused_s,
        )
        cluster.unpause(master)
        wait_more(client)
        finish(client)


@pytest.mark.parametrize("cut", [(RING, REGISTRY), (RING,)], ids=["ring and registry", "ring only"])
def test_an_isolated_master_confirms_nothing_while_the_others_go_on(
    cluster: Cluster, cut: tuple[str, ...]
) -> None:
    """The master keeps its clients. `left` publishes there, and is stuck; after a while it goes to
    the others, under the same name, and repeats the messages that they don't have.

    Had the isolated master confirmed anything by itself, the others wouldn't have it, and `left`
    would be confirmed the same publish twice, once on either side.
    """
    isolated = declare(cluster)
    others = tuple(node for node in cluster.nodes if node != isolated)
    half = ISOLATED_COUNT // 2

    with (
        producer(cluster, "left", 0, half, reach=(isolated,), confirm_s=STUCK_SECONDS) as left,
        producer(cluster, "right", half, half, reach=others) as right,
    ):
        wait_more(left)
        wait_more(right)
        cluster.disconnect(isolated, *cut)
        cut_at = time.time()
        wait_more(right, deadline_s=FAILOVER_SECONDS_MAX)
        stayed = left.report(deadline_s=CLIENT_SECONDS_MAX)
        assert stayed["confirmed_at"] < cut_at + 1
        assert 0 < stayed["confirmed"] < stayed["published"] < half, stayed
        with producer(cluster, "left", 0, half, reach=others) as left:
            wait_more(left)
            cluster.connect(isolated)
            moved = left.report(deadline_s=CLIENT_SECONDS_MAX)
        published = right.report(deadline_s=CLIENT_SECONDS_MAX)

    # The others had those of its messages that were confirmed, or on their way when the cut came.
    assert stayed["confirmed"] <= moved["began_at"] <= stayed["published"]
    by_both = {*indexes(stayed)} & {*indexes(moved)}
    assert not by_both
    assert moved["ranges"] == [[moved["began_at"], half - 1]]
    assert published["ranges"] == [[0, half - 1]]
    drained = drain(
        cluster,
        isolated,
        Produced(0, half, (*ranges(stayed), *ranges(moved))),
        Produced(half, half, ranges(published)),
    )
    assert drained["survived"] == ISOLATED_COUNT


def test_all_of_them_die_at_once_and_what_was_confirmed_is_there(cluster: Cluster) -> None:
    with traffic_on(cluster) as client:
        wait_more(client)
        cluster.restart_all(registry=True)
        wait_more(client)
        finish(client)


def test_a_master_that_is_told_to_stop_hands_over(cluster: Cluster) -> None:
    with traffic_on(cluster) as client:
        master = wait_more(client)["master"]
        cluster.stop(master)
        assert cluster.exit_code(master) == 0
        wait_more(client)
        cluster.start(master)
        wait_more(client)
        report = finish(client)
    # The master announced its leave, so that no time-out had to find it out.
    assert report["longest_gap_ms"] < RING_TIMEOUT_S * 1000


def test_publishing_goes_on_without_the_registry(cluster: Cluster) -> None:
    with traffic_on(cluster, rate=3000.0) as client:
        master = wait_more(client)["master"]
        cluster.stop(ETCD)
        stopped_at = time.monotonic()
        client.wait_record(
            "the registry's absence",
            lambda record: time.monotonic() > stopped_at + REGISTRY_AWAY_SECONDS,
            deadline_s=2 * REGISTRY_AWAY_SECONDS,
        )
        wait_more(client)
        cluster.start(ETCD)
        wait_more(client)
        report = finish(client)
    assert report["longest_gap_ms"] < RING_TIMEOUT_S * 1000
    # The first that was asked: nobody has taken over, though every lease ran out meanwhile.
    assert next(iter(report["digests"])) == master


def test_a_client_that_cant_reach_the_advertised_names_is_relayed(cluster: Cluster) -> None:
    """As one on the machine that `deploy/compose.yaml` runs on: it knows published ports only."""
    master = declare(cluster)
    (other, *_) = (node for node in cluster.nodes if node != master)
    bodies = Lines().bodies(0, 1000)

    async def talk() -> list[bytes]:
        taken: list[bytes] = []
        async with ringmq.connect(cluster.address(other)) as client:
            async with client.publisher(QUEUE) as publisher:
                await publisher.publish_batch(bodies)
            async with client.consumer(QUEUE) as consumer:
                while len(taken) < len(bodies):
                    batch = await anext(consumer)
                    taken += batch.bodies
                    assert await consumer.ack(batch, wait=True)
        return taken

    async def within_time() -> list[bytes]:
        async with asyncio.timeout(CLIENT_SECONDS_MAX):
            return await talk()

    assert loops.run(within_time()) == bodies
