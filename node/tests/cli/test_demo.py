"""The demo's verdict on its nodes' logs, without any node."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringmq_node.cli.app import invoke
from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_node.cli.demo.course import Demo

RECORD = "2026-11-22 03:00:00,123 {level:<7} ringmq_node.node: {text}\n"


def record(level: str, text: str) -> str:
    return RECORD.format(level=level, text=text)


def test_an_error_in_a_log_fails_the_demo_and_keeps_the_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "demo"
    log = directory / "logs" / "node2.log"

    async def run(_: Demo) -> None:
        log.write_text(
            record("WARNING", "node1 is dead")
            + record("ERROR", "a task has failed")
            + "Traceback (most recent call last):\n  File ...\nValueError: 7\n"
        )

    monkeypatch.setattr(Demo, "run", run)
    assert invoke(["demo", "--data", str(directory)]) == 1
    failure = capsys.readouterr().err.splitlines()[-1]
    assert f"a node has logged an error: {log}:2: " in failure
    assert failure.endswith("a task has failed ... ValueError: 7")
    assert log.exists()


def test_warnings_fail_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "demo"

    async def run(_: Demo) -> None:
        (directory / "logs" / "node1.log").write_text(record("WARNING", "node2 is dead"))

    monkeypatch.setattr(Demo, "run", run)
    assert invoke(["demo", "--data", str(directory)]) == 0
    assert not directory.exists()


def test_faults_come_with_the_log_of_their_node(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, nodes=3)
    cluster.log("node1").write_text(record("INFO", "fine"))
    cluster.log("node3").write_text(record("INFO", "fine") + record("CRITICAL", "not fine"))
    (fault,) = cluster.log_faults()
    assert (fault.file, fault.line) == (str(cluster.log("node3")), 2)
