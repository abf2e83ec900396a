"""The judge of the nodes' logs is itself judged: a planted traceback fails the test."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops import run
from nemesis import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

PLANTED = """2026-01-02 03:04:05,678 ERROR   ringmq_gm.rings: a ring's step has raised
Traceback (most recent call last):
AttributeError: 'uvloop.loop.Handle' object has no attribute 'when'
"""


@pytest.mark.parametrize("announced", [False, True], ids=["unannounced", "announced"])
def test_a_traceback_in_a_nodes_log(tmp_path: Path, announced: bool) -> None:
    async def story() -> None:
        async with Cluster(tmp_path, nodes=("a",)) as cluster:
            if announced:
                cluster.expect_log("AttributeError: .* has no attribute 'when'")
            with (tmp_path / "a.log").open("a") as log:
                log.write(PLANTED)

    if announced:
        run(story())
    else:
        with pytest.raises(AssertionError, match=r"a\.log:\d+: .*a ring's step has raised"):
            run(story())
