"""Messages from the command line and back to it: what they carry, and what holds them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from waiting import leeway

from ringmq_node.cli.app import invoke
from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_node.cli.options import run as run_on_loop

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def test_a_publish_that_an_alarm_holds_ends_with_its_time_and_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGMQ_DISK_FREE_LIMIT", "100TiB")
    local = LocalCluster.create(tmp_path, nodes=1, base_port=0)
    local.start("node1")
    try:
        run_on_loop(local.wait_ready())
        monkeypatch.setenv("RINGMQ_SEEDS", local.seeds)
        assert invoke(["queue", "declare", "held"]) == 0
        for target, said in (
            (["held"], "queue 'held'"),
            (["--exchange", "", "--routing-key", "held"], "the default exchange"),
            (["--exchange", "amq.topic", "--routing-key", "held"], "exchange 'amq.topic'"),
        ):
            capsys.readouterr()
            began = time.monotonic()
            assert invoke(["publish", *target, "--count", "1", "--timeout", "0.5"]) == 1
            assert time.monotonic() - began < 0.5 + leeway(0.5)
            told = capsys.readouterr().err.splitlines()
            assert told == [
                "blocked: disk",
                "ringmq: not confirmed within the deadline; last trouble: "
                f"{said}: publishers are blocked: disk",
            ]
    finally:
        local.stop()
