from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_node import LiveNode

import ringmq
from ringmq_pipeline import doctor
from ringmq_pipeline.cli import invoke
from ringmq_pipeline.doctor import PipelineParts, examine


def unfit(wanted: PipelineParts) -> dict[str, str]:
    return {each.check: each.text for each in examine(wanted) if not each.is_fit}


def test_where_all_is_there_nothing_is_amiss(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.fill("healthy", [b"x"] * 3)
    lake = tmp_path / "new" / "lake"
    arguments = ["doctor", "--endpoints", live.address, "--queue", "healthy", "--to", str(lake)]
    assert invoke([*arguments, "--without-spark"]) == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert (summary["verb"], summary["ok"], summary["unfit"]) == ("doctor", True, [])
    assert "queue healthy: 3 messages, 3 bytes; lease is free; it can be read" in said.err
    assert not lake.parent.exists()
    assert live.stat("healthy").leases == ()


def test_everything_that_is_amiss_is_named_in_one_run(
    live: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.fill("of the night", [b"x"])
    held = live.client.reader("of the night").acquire_lease("ingest", holder="the night shift")
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "PACKAGES", ("pyarrow", "no-such-package"))
    found = unfit(
        PipelineParts(live.address, ("of the night", "missing"), folders=(tmp_path / "file",))
    )
    held.release()
    assert "leased by 'the night shift'" in found["queue of the night"]
    assert "missing" in found["queue missing"]
    assert "pip install" in found["package no-such-package"]
    assert "can't be written" in found[f"folder {tmp_path / 'file'}"]
    assert len(found) == 4


def test_a_queue_is_looked_for_in_its_vhost(
    live: LiveNode, capsys: pytest.CaptureFixture[str]
) -> None:
    live.client.topology.create_vhost("shop")
    with ringmq.connect_sync(live.address, vhost="shop") as client:
        client.declare_queue("till")
    arguments = ["doctor", "--endpoints", live.address, "--without-spark", "--queue", "till"]
    assert invoke(arguments) != 0
    assert "FAIL  queue till" in capsys.readouterr().err
    assert invoke([*arguments, "--vhost", "shop"]) == 0


def test_a_broker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CALL_S", 0.2)
    assert [*unfit(PipelineParts("127.0.0.1:1"))] == ["broker 127.0.0.1:1"]
