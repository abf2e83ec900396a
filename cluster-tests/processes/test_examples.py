"""Each program of `examples/` runs as a newcomer runs it, and prints what its README says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from commands import succeeded
from loops import run
from nemesis import Cluster, scenario, until
from waiting import leeway

EXAMPLES = Path(__file__).parents[2] / "examples"

# The lines that say that the example has shown what it is there for, in any order.
SAID = {
    "work_queue.py": ("anna leaves with unfinished tasks", "100 tasks are done"),
    "publish_subscribe.py": tuple(
        f"{name} heard first, second, third" for name in ("anna", "ben", "carl")
    ),
    "topics.py": (
        "example.europe has order.eu.new, order.eu.paid",
        "example.paid has order.eu.paid, order.us.paid",
        "example.unwanted has order.us.new",
        "nobody wants it any more",
    ),
    "request_reply.py": ("2 squared is 4, 3 squared is 9, 12 squared is 144",),
    "retry_with_dead_letters.py": (
        "easy is done at try 1",
        "flaky is done at try 2",
        "hopeless is parked after 3 tries",
    ),
    "priorities.py": ("fire, warning, report 1, report 2",),
}
# Alone with a cluster of its own, as it kills a node of `make cluster`.
KILLS = "idempotent_producer.py"


def test_every_example_is_known_and_described() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")} - {"nodes.py"}
    assert programs == {*SAID, KILLS}
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"({name})" in readme for name in programs)


@scenario(deadline_s=120, queue="")
async def test_each_example_does_what_it_says(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for name, lines in SAID.items():
            said = await succeeded(sys.executable, EXAMPLES / name, *cluster.seeds)
            for line in lines:
                assert line in said, f"{name}:\n{said}"

        async def nothing_is_left() -> bool:
            exchanges = [each.exchange for each in await client.topology.exchanges()]
            ours = [name for name in exchanges if name.startswith("example")]
            return not ours and not await client.queues()

        # Not at once: an example may have asked another node than this client.
        await until(nothing_is_left, "the examples leave nothing behind")


@pytest.mark.slow
@pytest.mark.cluster
def test_a_producer_whose_master_is_killed_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cluster that `ringmq cluster` means if nothing else is said.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def story() -> None:
        ringmq = (sys.executable, "-m", "ringmq_node.cli")
        up = (*ringmq, "cluster", "up", "--json")
        before = json.loads(await succeeded(*up, "--base-port", "0"))["nodes"]
        try:
            seeds = [each["address"] for each in before]
            said = await succeeded(sys.executable, EXAMPLES / KILLS, *seeds, timeout_s=leeway(60))
            assert re.search(r"the master (node\d) was killed, (?!\1)node\d has followed it", said)
            for line in ("all confirmed ones were known: True", "each once and in order: True"):
                assert line in said, said
            after = json.loads(await succeeded(*up))["nodes"]
            # One of them has had another process since.
            assert len({each["pid"] for each in before} & {each["pid"] for each in after}) == 2
        finally:
            down = json.loads(await succeeded(*ringmq, "cluster", "down", "--json"))
        assert (sorted(down["stopped"]), down["killed"]) == (["node1", "node2", "node3"], [])

    run(story())
