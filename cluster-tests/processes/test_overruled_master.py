"""An operator accepts a loss while the master lives, cut off with its mirror: real cuts, and etcd.

Six hosts (network namespaces): the nodes a, b and c, etcd, and a client on either side. `left`
reaches a and b only, and publishes all the time. c is cut from a and b, which go on without it, and
lose etcd as well. Nobody but `left` hears of them any more, so the operator, at `right`, lets the
queue go on with c. As soon as c reaches a and b again, these confirm nothing more, though they
don't reach etcd. What they had confirmed meanwhile is set aside.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import Ended
from history.records import Confirm, Deliver, Record, from_line
from nemesis import Cluster, until
from nemesis.command_line import ringmq, ringmq_succeeded
from nemesis.network import Network
from nemesis.on_hosts import play
from nemesis.programs import Program
from waiting import leeway

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

# A batch of 50 each 0.03 s: for longer than the story takes.
TOTAL, BATCH, DEADLINE_S = 200_000, 50, 30.0
# Between two commands of an operator.
ASKED_EACH_S = 0.2
# A link is dialled again each second at least, and the first frame tells it.
TOLD_S_MAX = 3.0


def test_an_overruled_master_stops_when_a_replica_of_the_new_ring_reaches_it(
    tmp_path: Path,
) -> None:
    play(tmp_path, ("left", "right"), overrule)


async def overrule(cluster: Cluster, network: Network) -> None:
    cluster.expect_log("has accepted that confirmed messages may be lost")
    cluster.expect_log("which were confirmed, is cut: .* are set aside")
    at = cluster.addresses
    network.cut("left", "c")
    every = ",".join(at.values())
    ring = Program(network, "right", "declare", every, "q").result(20)
    assert ring == ["a", "b", "c"]
    load = ("left", "publish", f"{at['a']},{at['b']}", "q", "left", str(TOTAL), str(DEADLINE_S))
    left = Program(network, *load, str(BATCH))
    try:
        left.ready()
        left.begin()
        left.opened()
        await asyncio.sleep(1.0)
        network.cut("c", "a", "b")
        await until(
            lambda: ring_at(network, at["a"]) == ["a", "b"], "c is put out", poll_s=ASKED_EACH_S
        )
        network.cut("etcd", "a", "b")
        warning = "No answer from a, b: a node that still runs"
        await until(
            lambda: warning in promoted(network, at["c"]).err,
            "the leases of a and b have run out",
            within_s=40,
            poll_s=ASKED_EACH_S,
        )
        accepted = promoted(network, at["c"], "--accept-loss")
        assert accepted.exit_code == 0, accepted.err
        accepted_at = time.monotonic()
        (loss,) = shown(network, at["c"])["losses"]
        assert [life.partition("#")[0] for life in loss["overruled"]] == ["a", "b"]
        await asyncio.sleep(1.0)
        network.heal("c", "a", "b")
        healed_at = time.monotonic()
        # It sends again there what a hadn't confirmed, and then has nothing to do with a.
        await until(
            lambda: shown(network, at["c"])["next_position"] > loss["position"],
            "`left` is served by c",
            within_s=30,
            poll_s=ASKED_EACH_S,
        )
        left.enough()
        published = left.result(90)
    finally:
        left.end()
    network.heal("etcd", "a", "b")
    found = Program(network, "right", "drain", every, "q", "3").result(90)
    confirms = [r for r in map(from_line, published["history"]) if isinstance(r, Confirm)]
    kept = [await set_aside(cluster, name, loss["position"]) for name in "ab"]
    in_queue = numbers_in(map(from_line, found))
    overruled = [confirm for confirm in confirms if confirm.first not in in_queue]
    # While it was cut off nothing told it, and a link does.
    assert any(accepted_at < confirm.at < healed_at for confirm in overruled)
    late_s = max(confirm.at for confirm in overruled) - healed_at
    print(f"the last confirm of the overruled came {late_s:.2f} s after the link was healed")
    assert late_s < leeway(TOLD_S_MAX)
    for confirm in confirms:
        numbers = set(range(confirm.first, confirm.last + 1))
        assert all(numbers <= in_queue.union(each) for each in kept)


async def set_aside(cluster: Cluster, name: str, end: int) -> range:
    """The numbers of the messages behind `end` that this node has set aside: one producer, so
    they are its positions."""
    listed = await ringmq_succeeded("set-aside", "list", str(cluster.data(name)), "--json")
    (kept,) = json.loads(listed)["set_aside"]
    assert kept["first_position"] == end
    assert kept["messages"] == kept["next_position"] - end
    return range(end, kept["next_position"])


def numbers_in(found: Iterable[Record]) -> set[int]:
    """Of the messages that were in the queue."""
    return {
        number
        for record in found
        if isinstance(record, Deliver)
        for run in record.runs
        for number in range(run.number, run.number + run.count)
    }


def ringmq_at(network: Network, *words: str) -> Ended:
    """`ringmq` as the operator calls it."""
    return ringmq(*words, namespace=network.namespace("right"))


def promoted(network: Network, seed: str, *options: str) -> Ended:
    return ringmq_at(network, "promote", "q", "c", "--seeds", seed, *options)


def shown(network: Network, seed: str) -> Any:
    done = ringmq_at(network, "queue", "show", "q", "--seeds", seed, "--json")
    assert done.exit_code == 0, done.err
    return json.loads(done.out)


def ring_at(network: Network, seed: str) -> list[str]:
    return [each["node"] for each in shown(network, seed)["ring"]]
