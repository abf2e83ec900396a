"""The commands, one after the other, against a node that they start and end themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from ringmq_node.cli.app import invoke

Run = Callable[..., Any]
CLI_DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


def assert_documented(report: dict[str, Any]) -> None:
    documented = CLI_DOCS.read_text()
    assert [name for name in report if f"`{name}`" not in documented] == []


def assert_reflects(address: str) -> None:
    """The node tells tools like grpcurl what it serves, and in which words."""
    with grpc.insecure_channel(address) as channel:
        found = ProtoReflectionDescriptorDatabase(channel)
        services = set(found.get_services())
        assert {"ringmq.v1.Broker", "ringmq.v1.Admin", "grpc.health.v1.Health"} <= services
        pool = DescriptorPool(found)
        methods = pool.FindServiceByName("ringmq.v1.Broker").methods_by_name
        assert {"Publish", "Consume", "DeclareQueue"} <= {*methods}
        assert methods["Publish"].input_type.name == "PublishRequest"


@pytest.fixture
def run(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs a command with --json; returns what it printed, by lines if there are several."""

    def run_json(*words: object, code: int = 0) -> Any:
        got = invoke([*map(str, words), "--json"])
        out, err = capsysbinary.readouterr()
        assert got == code, err
        lines = [json.loads(line) for line in out.splitlines()]
        return lines[0] if len(lines) == 1 else lines

    data = tmp_path / "cluster"
    up = run_json("cluster", "up", "--nodes", 1, "--base-port", 0, "--data", data)
    try:
        monkeypatch.setenv("RINGMQ_SEEDS", up["nodes"][0]["address"])
        yield run_json
    finally:
        assert run_json("cluster", "down", "--data", data)["killed"] == []


@pytest.mark.slow
def test_commands(run: Run, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """One test, as a node takes a second to start."""
    status = run("cluster", "status")
    assert [(each["node"], each["state"]) for each in status["nodes"]] == [("node1", "running")]

    assert_reflects(status["nodes"][0]["address"])

    # Queues.
    assert run("queue", "declare", "q")["replicas_wanted"] == 1
    run("queue", "declare", "q2")
    assert [each["queue"] for each in run("queue", "list")] == ["q", "q2"]
    assert run("queue", "list", "nothing") == []
    shown = run("queue", "show", "q")
    assert [(each["node"], each["synchronised"]) for each in shown["ring"]] == [("node1", True)]
    run("queue", "show", "none", code=1)

    # Transient queues.
    assert shown["durable"]
    assert not run("queue", "declare", "t", "--transient")["durable"]
    assert not run("queue", "declare", "t")["durable"]
    run("queue", "declare", "t", "--durable", code=1)
    run("queue", "declare", "q", "--transient", code=1)
    assert run("publish", "t", "--count", 100)["confirmed"] == 100
    assert run("queue", "show", "t")["storage"]["journal_bytes_written"] == 0
    assert [each["durable"] for each in run("queue", "list", "t")] == [False]
    run("queue", "delete", "t")

    # Modes, and where messages are.
    assert run("queue", "declare", "lazy", "--mode", "lazy")["mode"] == "lazy"
    run("queue", "declare", "lazy", "--mode", "default", code=1)
    assert run("publish", "lazy", "--count", 1000, "--size", 5000)["confirmed"] == 1000
    shown = run("queue", "show", "lazy")
    storage = shown["storage"]
    assert (shown["mode"], storage["messages_in_memory"]) == ("lazy", 0)
    parts = ("pending", "q4", "q3", "delta", "q2", "q1")
    assert sum(storage[f"messages_{part}"] for part in parts) == 1000
    assert (storage["messages_target"], storage["messages_q1"]) == (None, 0)
    assert storage["body_bytes_stored"] >= 5_000_000 > storage["journal_bytes_written"] > 0
    assert storage["body_bytes_written"] == 5_000_000
    assert storage["body_bytes_read"] == storage["body_bytes_elided"] == 0
    assert storage["segments_loaded"] == 0
    numbers = run("cluster", "status")["nodes"][0]["resources"]["store"]
    assert numbers["message_store_bytes"] >= 5_000_000
    assert numbers["message_store_garbage_bytes"] < 100_000
    assert numbers["journal_bytes_written"] >= storage["journal_bytes_written"]
    assert numbers["rounds"] > 0
    assert numbers["journals_sealed"] == numbers["sealed_bytes"] == 0
    changed = run("queue", "mode", "lazy", "default")
    assert changed == {"queue": "lazy", "before": "lazy", "mode": "default"}
    assert run("queue", "show", "lazy")["mode"] == "default"
    assert invoke(["queue", "show", "lazy"]) == 0
    text = capsysbinary.readouterr().out.decode()
    assert "pending 0  q4 0  q3 1000  delta 0" in text
    assert "target none" in text
    assert "bytes 0  blocks 0  segments 0" in text
    assert "bodies 5000000  elided 0  journals " in text
    assert run("queue", "delete", "lazy")["messages"] == 1000
    run("promote", "q", "nobody", code=1)

    # Lines in, lines out.
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n\nthree \xff\nfour")
    sent = run("publish", "q", "--file", lines)
    assert (sent["published"], sent["confirmed"]) == (4, 4)
    looked = run("consume", "q", "--requeue", "--count", 2)
    assert [each["body"] for each in looked] == ["one", ""]
    taken = run("consume", "q", "--count", 3)
    assert taken[0] == {"position": 0, "redelivered": True, "body": "one"}
    assert taken[2]["body_base64"] == "dGhyZWUg/w=="
    last = run("consume", "q")
    assert (last["position"], last["body"]) == (3, "four")
    assert run("consume", "q") == []
    assert run("publish", "q", "--count", 2500, "--size", 10)["confirmed"] == 2500
    assert run("queue", "purge", "q")["messages"] == 2500
    assert run("queue", "discard-damaged", "q") == {"queue": "q", "messages": 0}
    assert run("queue", "show", "q")["messages_damaged"] == 0

    # The bench, on queues of its own and on one that is there.
    both = run("bench", "both", "--count", 2001, "--queues", 2, "--size", 64, "--window", 100)
    assert (both["count"], both["confirmed"], both["consumed"]) == (2001, 2001, 2001)
    assert [both[name] for name in ("lost", "duplicated", "reordered", "unexpected")] == [0] * 4
    assert_documented(both)
    assert both["confirm_ms"]["p50"] > 0 < both["end_to_end_ms"]["max"]
    small = run("bench", "both", "--count", 500, "--size", 3)
    assert (small["consumed"], small["lost"], small["end_to_end_ms"]) == (500, None, None)
    published = run("bench", "publish", "--queue", "q", "--count", 300, "--window", 1)
    assert (published["confirmed"], published["nacked"]) == (300, 0)
    run("bench", "both", "--queue", "q", code=1)  # it isn't empty
    consumed = run("bench", "consume", "--queue", "q")
    assert (consumed["consumed"], consumed["lost"]) == (300, None)
    assert run("bench", "consume", "--count", 1000)["lost"] == 0
    assert run("bench", "publish", "--seconds", 0.2)["count"] > 0
    assert [each["queue"] for each in run("queue", "list")] == ["q", "q2"]

    # What can't be sent.
    for option in ("--replicas", "--min-insync"):
        run("queue", "declare", "new", option, 5_000_000_000, code=2)
    run("bench", "both", "--count", 10, "--prefetch", 5_000_000_000, code=2)
    run("queue", "declare", os.fsdecode(b"\xff\xfe"), code=2)
    run("publish", os.fsdecode(b"\xff\xfe"), "--count", 1, code=2)
    run("consume", os.fsdecode(b"\xff\xfe"), code=2)

    # Again, with any ports.
    again = run("cluster", "up", "--nodes", 1, "--base-port", 0, "--data", tmp_path / "cluster")
    assert again["nodes"][0]["address"] == status["nodes"][0]["address"]

    # On disk by its name.
    ids = {each["queue"]: each["id"] for each in run("queue", "list")}
    assert run("queue", "show", "q")["id"] == ids["q"] != "q"
    run("cluster", "down", "--data", tmp_path / "cluster")
    data = tmp_path / "cluster" / "node1"
    for word in ("q", ids["q"]):
        shown = run("store", "inspect", data, "--queue", word)
        assert (shown["queue"], shown["name"]) == (ids["q"], "q")
    statistics = run("store", "stats", data)
    assert {each["name"]: each["queue"] for each in statistics["queues"]} == ids
    run("cluster", "up", "--nodes", 1, "--data", tmp_path / "cluster")

    assert run("queue", "delete", "q2")["messages"] == 0


@pytest.mark.slow
def test_consume_beyond_its_windows(run: Run, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    def refused(*words: object) -> tuple[int, str]:
        assert invoke(["consume", "q", "--requeue", *map(str, words)]) == 1
        out, err = capsysbinary.readouterr()
        return out.count(b"\n"), err.decode()

    run("queue", "declare", "q")
    assert run("publish", "q", "--count", 2500, "--size", 10)["confirmed"] == 2500
    # More than fit into a look.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringmq_node.cli.messages.look.HELD_BYTES_MAX", 10_000)
        assert refused()[0] == 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringmq_node.cli.messages.look.HELD_MESSAGES_MAX", 100)
        printed, said = refused("--count", 2000)
        assert printed == 100
        assert "stopped after 100 messages, 1000 bytes" in said
        assert len(run("consume", "q", "--requeue", "--count", 100)) == 100
    assert run("queue", "show", "q")["messages_ready"] == 2500
    # More than the window has messages, or bytes.
    taken = run("consume", "q", "--count", 2100)
    assert [each["position"] for each in taken] == list(range(2100))
    assert run("queue", "purge", "q")["messages"] == 400
    assert run("publish", "q", "--count", 30, "--size", 1_000_000)["confirmed"] == 30
    assert len(run("consume", "q", "--count", 20)) == 20
    assert len(run("consume", "q")) == 10


@pytest.mark.slow
def test_the_demo_loses_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = invoke(["demo", "--count", "20000", "--data", str(tmp_path / "demo"), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads(out)
    assert (report["published"], report["confirmed"], report["consumed"]) == (20000,) * 3
    broken = ("lost", "duplicated", "reordered", "unexpected")
    assert {name: report[name] for name in broken} == dict.fromkeys(broken, 0)
    assert report["killed"] is not None
    assert 0 < report["failover_ms"] < 3000
    assert_documented(report)
    assert report["resynchronised"]
    assert report["digests_equal"]
    assert not (tmp_path / "demo").exists()
    assert "is killed" in err
