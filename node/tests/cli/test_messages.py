"""Messages from the command line and back to it: what they carry, and what holds them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from node.tests.cli.json_commands import Run, assert_documented
from waiting import leeway

import ringmq
from ringmq_node.cli.app import invoke
from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_node.cli.options import run as run_on_loop

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

PROPERTIES = {
    "message_id": "m1",
    "correlation_id": "c1",
    "reply_to": "answers",
    "content_type": "application/json",
    "content_encoding": "gzip",
    "type": "order",
    "user_id": "u1",
    "app_id": "a1",
    "cluster_id": "k1",
    "timestamp_ms": 1_764_300_000_123,
}
HEADERS = {"region": "eu", "n": 5, "share": 0.5, "list": [1, "1"], "void": None}


def test_what_is_said_of_a_message_is_published_and_printed(run: Run, tmp_path: Path) -> None:
    run("queue", "declare", "told")
    run("binding", "add", "amq.headers", "told", "-a", "n:=5")
    options: list[object] = []
    for name, value in PROPERTIES.items():
        options += ["--" + name.replace("_", "-"), value]
    for header in ("region=eu", "n:=5", "share:=0.5", 'list:=[1,"1"]', "void"):
        options += ["--header", header]
    options += ["--priority", 7, "--ttl-ms", 600_000, "--cc", "second"]
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    exchange = ("--exchange", "amq.headers", "--routing-key", "k", "--mandatory")
    assert run("publish", *exchange, *options, "--file", lines)["confirmed"] == 2
    expected = {
        "exchange": "amq.headers",
        "routing_key": "k",
        "cc": ["second"],
        "priority": 7,
        "expiration_ms": 600_000,
        "headers": HEADERS,
        "properties": PROPERTIES,
    }
    for verb in (["browse"], ["consume", "--requeue"], ["consume"]):
        first, second = run(*verb, "told")
        assert (first["body"], second["body"]) == ("one", "two")
        for row in (first, second):
            assert row == row | expected
            assert "deaths" not in row
            assert_documented(row)
            assert_documented(row["properties"])
    run("queue", "delete", "told")


def test_properties_are_printed_before_the_body(
    run: Run, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    run("queue", "declare", "worded")
    lines = tmp_path / "lines"
    lines.write_text("hello world\n")
    options: list[object] = ["--priority", 7, "--ttl-ms", 600_000, "--type", "an order"]
    for header in ("region=eu", "n:=5", "text=5", "word=true", "empty=", "tab=a\tb", "a b=c=d"):
        options += ["--header", header]
    run("publish", "worded", *options, "--content-type", "text/plain", "--file", lines)

    def printed(*command: str) -> tuple[bytes, list[bytes]]:
        assert invoke([*command, "worded", "--properties"]) == 0
        (line,) = capsysbinary.readouterr().out.splitlines()
        *first, said, body = line.split(b"\t")
        assert body == b"hello world"
        return said, first

    own = (
        b'exchange="" routing_key=worded priority=7 headers."a b"="c=d" headers.empty="" '
        b'headers.n=5 headers.region=eu headers.tab="a\\tb" headers.text="5" headers.word="true" '
        b'content_type=text/plain type="an order" expiration_ms=600000'
    )
    said, first = printed("browse")
    assert (first, said) == ([b"0"], b"redelivered=false persistent=true body_size=11 " + own)
    said, first = printed("consume")
    assert (first, said) == ([], b"position=0 redelivered=false delivery_count=0 " + own)
    run("queue", "delete", "worded")


def test_a_message_of_which_nothing_is_said_has_no_keys_for_it(run: Run) -> None:
    run("queue", "declare", "bare")
    run("publish", "bare", "--count", 1, "--size", 1)
    said = {"position", "redelivered", "exchange", "routing_key", "body"}
    browsed = run("browse", "bare")
    assert {*browsed} == said | {"persistent", "body_size"}
    consumed = run("consume", "bare")
    assert {*consumed} == said | {"delivery_count"}
    # As of the default exchange.
    assert (consumed["exchange"], consumed["routing_key"]) == ("", "bare")
    run("queue", "delete", "bare")


def test_a_dead_letter_tells_its_deaths(run: Run) -> None:
    run("queue", "declare", "dead")
    letters = ("--dead-letter-exchange", "", "--dead-letter-routing-key", "dead")
    run("queue", "declare", "dying", *letters)
    run("publish", "dying", "--count", 1, "--ttl-ms", 0)
    letter = run("consume", "dead", "--follow", "--count", 1)
    (death,) = letter["deaths"]
    assert death == {
        "reason": "expired",
        "queue": "dying",
        "count": 1,
        "time_ms": death["time_ms"],
        "exchange": "",
        "routing_keys": ["dying"],
        "original_expiration_ms": 0,
    }
    assert death["time_ms"] > 1_700_000_000_000
    assert (letter["exchange"], letter["routing_key"]) == ("", "dead")
    assert_documented(letter)
    assert_documented(death)
    for queue in ("dead", "dying"):
        run("queue", "delete", queue)


def test_values_that_json_has_not_are_printed_as_texts(run: Run, cluster: LocalCluster) -> None:
    run("queue", "declare", "foreign")
    headers: dict[str, ringmq.HeaderValue] = {"data": b"\xff", "nested": [b"hi"]}
    foreign = ringmq.Properties(headers=headers, format="amqp-1.0", foreign=b"\xff")
    with (
        ringmq.connect_sync(cluster.seeds) as client,
        client.publisher("foreign") as publisher,
    ):
        publisher.publish(b"x", foreign)
    row = run("consume", "foreign")
    assert row["headers"] == {"data": "ff", "nested": ["6869"]}
    assert row["properties"] == {"format": "amqp-1.0", "foreign_base64": "/w=="}
    assert_documented(row["properties"])
    run("queue", "delete", "foreign")


def test_a_publish_that_fails_tells_how_many_are_confirmed(
    run: Run, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A full queue takes the first ones of a batch. Who publishes again has to know of them."""
    run("queue", "declare", "full", "--max-length", 5, "--overflow", "reject-publish")
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(8)))
    assert invoke(["publish", "full", "--file", str(lines), "--json"]) == 1
    said = capsysbinary.readouterr()
    report = json.loads(said.out)
    assert (report["published"], report["confirmed"]) == (8, 5)
    assert said.err.startswith(b"ringmq: queue 'full' is full")
    assert [row["body"] for row in run("consume", "full")] == [str(number) for number in range(5)]
    run("queue", "delete", "full")


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
