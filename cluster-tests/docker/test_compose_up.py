"""`deploy/compose.yaml` brought up by a real Compose: what its users do with it works, and no
container logs an error.

What its clients see is a history as chaos writes it, and the same checker judges it; the faults
are those of the shared vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from containers.compose import Compose, free_port, project
from containers.hands import Hands, wait_healthy
from faults.vocabulary import Crash, Promote, Restart
from history.checker import Verdict, check
from history.records import Drained, History, Record, View, merged, read
from loops import run
from nemesis.workload import Consuming, Publishing
from waiting import until

import ringmq

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NODES = ("node1", "node2", "node3")
SERVICES = ("etcd", *NODES)
MESSAGES = 2000


@pytest.fixture
def compose(
    engine: docker.DockerClient, node_image: str, etcd_image: str, tmp_path: Path
) -> Iterator[Compose]:
    variables = {"RINGMQ_IMAGE": node_image, "ETCD_IMAGE": etcd_image} | {
        f"{node.upper()}_PORT": str(free_port()) for node in NODES
    }
    with project(engine, tmp_path, variables) as made:
        yield made


def up(compose: Compose) -> None:
    compose.run("up", "--detach", "--no-build")
    for service in SERVICES:
        wait_healthy(compose, service)


class Views:
    """The cluster's answers about the ring, all of them noted. A client on this machine asks: each
    command in a container starts two programs."""

    def __init__(self, client: ringmq.Client, queue: str) -> None:
        self._client, self._queue = client, queue
        self.records: list[Record] = []

    async def look(self) -> View:
        shown = await self._client.queue(self._queue)
        view = View(
            time.monotonic(),
            "",
            shown.epoch,
            tuple(each.node for each in shown.ring),
            tuple(each.node for each in shown.ring if each.synchronised),
            shown.state.name.lower(),
        )
        self.records.append(view)
        return view

    async def wait_whole(self) -> View:
        """Returns when all replicas are synchronised."""
        seen: list[View] = []

        async def is_whole() -> bool:
            seen.append(await self.look())
            return len(seen[-1].synchronised) == len(NODES)

        await until(is_whole, "a whole ring", within_s=60)
        return seen[-1]


async def wait_empty(client: ringmq.Client, queue: str) -> None:
    async def is_empty() -> bool:
        shown = await client.queue(queue)
        return not shown.messages_ready and not shown.messages_unacknowledged

    await until(is_empty, "an empty queue", within_s=60)


def judged(path: Path, *histories: list[Record]) -> Verdict:
    """The verdict on a file of all that was recorded, in the order of time."""
    with History(path) as history:
        for record in merged(*histories):
            history.note(record)
    verdict = check(read(path))
    verdict.demand()
    return verdict


async def crash_promote_restart(compose: Compose, seeds: list[str], path: Path) -> None:
    """A client publishes and one consumes, on the ports that Compose has published, while the
    master crashes, has its queue back, and each node is restarted by its operator."""
    async with ringmq.connect(seeds) as client:
        hands, views = Hands(compose, "q"), Views(client, "q")
        master = (await views.wait_whole()).ring[0]
        async with (
            Consuming(seeds, "q", safe_acks=True) as eager,
            Publishing(seeds, "q", pause_s=0.05) as load,
        ):
            await load.confirms(100)
            await hands.play(Crash(0.0, master, 0.0))
            await load.confirms(100, within_s=40)
            assert (await views.wait_whole()).ring[0] != master
            await hands.play(Promote(0.0, master))
            await load.confirms(100, within_s=40)
            for node in NODES:
                await hands.play(Restart(0.0, node, 0.0))
                await views.wait_whole()
            await load.confirms(100, within_s=40)
        assert load.errors == []
        async with Consuming(seeds, "q", safe_acks=True) as rest:
            await wait_empty(client, "q")
    seen = (eager.delivered.records, rest.delivered.records)
    drained: list[Record] = [Drained(time.monotonic(), "")]
    verdict = judged(path, load.records, *seen, hands.records, views.records, drained)
    assert (verdict.drained, verdict.confirmed) == (1, load.attempted)
    # The answers to some acks may have been lost with the node that was asked.
    assert verdict.acked > 0
    assert verdict.delivered >= verdict.confirmed >= 400
    assert verdict.views >= 5


async def wait_whole(seeds: list[str], queue: str) -> None:
    async with ringmq.connect(seeds) as client:
        await Views(client, queue).wait_whole()


def test_up_publish_crash_promote_restart_down_and_up_again(
    compose: Compose, tmp_path: Path
) -> None:
    up(compose)
    states = [node["state"] for node in compose.ringmq("node1", "cluster", "status")["nodes"]]
    assert states == ["running"] * 3
    for queue in ("q", "lines"):
        assert len(compose.ringmq("node1", "queue", "declare", queue)["ring"]) == len(NODES)
    # By the command line of the image; it has to be there after all that comes.
    words = ("publish", "lines", "--count", str(MESSAGES), "--size", "100")
    assert compose.ringmq("node2", *words)["confirmed"] == MESSAGES

    run(crash_promote_restart(compose, compose.seeds(NODES), tmp_path / "history.jsonl"))

    compose.judge_logs()
    compose.run("down")
    assert [compose.run("ps", "--quiet")] == [""]
    up(compose)
    run(wait_whole(compose.seeds(NODES), "lines"))
    consumed = compose.run("exec", "-T", "node3", "ringmq", "consume", "lines")
    assert len(consumed.splitlines()) == MESSAGES
    compose.judge_logs()
    compose.run("down", "--volumes")
