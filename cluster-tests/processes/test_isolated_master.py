"""The master cut off from the other nodes while it keeps its clients: a real cut, a real etcd.

Six hosts (network namespaces): the nodes a, b and c, etcd, and a client on either side.
Both clients publish all the time, 100 000 messages together. `left` reaches only a; `right`
is with the majority. In the end the queue has every message that either side confirmed, once;
and the isolated master has long ceased to confirm when the majority begins.

Clients that can reach every node are served by the majority as soon as it has a master.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from history.checker import check
from history.records import Confirm, Publish, Record, from_line, merged
from nemesis import Cluster, until
from nemesis.network import Network
from nemesis.on_hosts import play
from nemesis.programs import Program, both_begun, longest_gap_s
from waiting import TooLateError, leeway

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

MESSAGES_PER_SIDE = 50_000
# Long enough for a failover. `left` gives up after it.
LEFT_DEADLINE_S = 5.0
RIGHT_DEADLINE_S = 30.0
# The ring time-out (2 s), a quarter more by jitter, and a second for all that follows.
WITHOUT_SERVICE_S_MAX = 3.5
# 17 s of batches, one each 0.03 s, and a consumer for as long: longer than a time without service
# may be. It was as long as the cut, which ends when both have ended.
SERVED_MESSAGES, SERVED_FOR_S = "140000", "17"
CLIENTS = ("left", "right")

SEES_REGISTRY = pytest.mark.parametrize(
    "sees_registry", [True, False], ids=["sees etcd", "cut from etcd, too"]
)


@SEES_REGISTRY
def test_isolated_master(tmp_path: Path, sees_registry: bool) -> None:
    play(tmp_path, CLIENTS, partial(isolate, sees_registry=sees_registry))


@SEES_REGISTRY
def test_clients_of_every_node_are_soon_served_again(tmp_path: Path, sees_registry: bool) -> None:
    play(tmp_path, CLIENTS, partial(clients_of_every_node, sees_registry=sees_registry))


async def isolate(cluster: Cluster, network: Network, *, sees_registry: bool) -> None:
    majority = ",".join(cluster.addresses[name] for name in ("b", "c"))
    ring = Program(network, "right", "declare", majority, "q").result(20)
    assert ring[0] == "a"
    network.cut("left", "b", "c")
    total = str(MESSAGES_PER_SIDE)
    sides = [
        Program(
            network, "left", "publish", cluster.addresses["a"], "q", "left", total,
            str(LEFT_DEADLINE_S),
        ),
        Program(
            network, "right", "publish", majority, "q", "right", total, str(RIGHT_DEADLINE_S)
        ),
    ]  # fmt: skip
    began = time.monotonic()
    resumed = ["right", "resume", cluster.addresses["b"], "q"]
    try:
        assert Program(network, *resumed, "9").result(20) == 0
        for side in sides:
            side.ready()
        for side in sides:
            side.begin()
        for side in sides:
            side.opened()
        await asyncio.sleep(1.5)
        away = ["b", "c", "right", *([] if sees_registry else ["etcd"])]
        network.cut("a", *away)
        cut_at = time.monotonic()
        await until_resumed(network, resumed)
        # The old master has 9 of this producer, the new one 15. Whoever is told 9 sends 10 to 15
        # once more, or goes on behind a hole.
        old = Program(network, "left", "resume", cluster.addresses["a"], "q", "15").result(20)
        assert old in ("NO_MASTER", "NOT_MASTER", "TOO_FEW_SYNCHRONISED"), old
        left, right = (side.result(90) for side in sides)
    finally:
        for side in sides:
            side.end()
    network.heal("a", *away)
    found = Program(network, "right", "drain", majority, "q", "3").result(90)
    judge(found, left, right, cut_at)
    of_resumed: list[Record] = [
        Publish(began, "", "resumed", 0, 14),
        Confirm(cut_at, "", "resumed", 0, 14),
    ]
    check([*of_resumed, *map(from_line, found)], strangers=True).demand()


async def clients_of_every_node(cluster: Cluster, network: Network, *, sees_registry: bool) -> None:
    seeds = ",".join(cluster.addresses[name] for name in ("a", "b", "c"))
    assert Program(network, "left", "declare", seeds, "q").result(20)[0] == "a"
    publisher = Program(network, "left", "publish", seeds, "q", "left", SERVED_MESSAGES, "30")
    consumer = Program(network, "right", "consume", seeds, "q", SERVED_FOR_S)
    clients = [publisher, consumer]
    try:
        both_begun(publisher, consumer)
        await asyncio.sleep(1.5)
        away = ["b", "c", *([] if sees_registry else ["etcd"])]
        network.cut("a", *away)
        cut_at = time.monotonic()
        published, came_at = (client.result(90) for client in clients)
    finally:
        for client in clients:
            client.end()
    network.heal("a", *away)
    assert not published["errors"]
    for what, moments in (("confirms", published["confirmed_at"]), ("deliveries", came_at)):
        assert moments[-1] > cut_at + leeway(WITHOUT_SERVICE_S_MAX)
        without_s = longest_gap_s(moments, after=cut_at)
        print(f"without {what} for {without_s:.2f} s")
        if without_s > leeway(WITHOUT_SERVICE_S_MAX):
            raise TooLateError(f"without {what} for {without_s:.2f} s")


async def until_resumed(network: Network, resumed: list[str]) -> None:
    """The producer goes on with 10 to 15 at the majority's new master."""

    def goes_on() -> bool:
        told: object = Program(network, *resumed, "15").result(20)
        assert told == 9 or isinstance(told, str), told
        return told == 9

    await until(goes_on, "the majority has a master", within_s=30, poll_s=0.2)


def judge(found: list[str], left: Any, right: Any, cut_at: float) -> None:
    assert left["attempted"] + right["attempted"] == 2 * MESSAGES_PER_SIDE
    # The cut was while both were publishing, and left could not go on.
    assert 0 < len(left["confirmed"]) < MESSAGES_PER_SIDE
    assert left["errors"]
    assert len(right["confirmed"]) == MESSAGES_PER_SIDE, right["errors"]
    history = map(from_line, [*left["history"], *right["history"], *found])
    check(merged(history), strangers=True).demand()
    # G3: the two sides never confirm at the same time. In between neither does, for about the
    # ring's time-out.
    gaps = zip(right["confirmed_at"], right["confirmed_at"][1:], strict=False)
    stopped, went_on = next(pair for pair in gaps if pair[1] > cut_at + 0.5)
    assert went_on - stopped > 1.0
    assert max(left["confirmed_at"]) < went_on
