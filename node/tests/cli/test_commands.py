"""The commands against one node: what they print as JSON, and that it is true.

Most tests share one node, and use queues of their own names; its log must have no error in the
end. The tests of `cluster up` and of the demo start nodes of their own.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from node.tests.cli.json_commands import Run, assert_documented, run_json

import ringmq
from ringmq.model.fields import fields_to_wire
from ringmq.v1.common_pb2 import Death, FirstDeath, Properties
from ringmq_base.limits import KIB
from ringmq_node.cli.app import invoke
from ringmq_node.cli.cluster.local import LocalCluster
from ringmq_node.model.names import join_name
from ringmq_node.queue import run as queue_run
from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.format.set_aside import SetAsideInfo
from ringmq_node.storage.set_aside import SetAsideWriter

BROKEN = ("lost", "duplicated", "reordered", "unexpected")
NOT_UTF8 = os.fsdecode(b"\xff\xfe")

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def names_of(queues: list[dict[str, Any]]) -> list[str]:
    return [each["queue"] for each in queues]


def test_a_node_reflects_its_services(cluster: LocalCluster) -> None:
    """Tools like grpcurl work without the .proto files."""
    with grpc.insecure_channel(cluster.seeds) as channel:
        found = ProtoReflectionDescriptorDatabase(channel)
        services = set(found.get_services())
        assert {"ringmq.v1.Broker", "ringmq.v1.Admin", "grpc.health.v1.Health"} <= services
        pool = DescriptorPool(found)
        methods = pool.FindServiceByName("ringmq.v1.Broker").methods_by_name
        assert {"Publish", "Consume", "DeclareQueue"} <= {*methods}
        assert methods["Publish"].input_type.name == "PublishRequest"


def test_browse_prints_a_range_and_leaves_it_there(
    run: Run, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\n\xff\nfour\n")
    run("queue", "declare", "browsed")
    run("publish", "browsed", "--file", lines)
    for _ in range(2):
        rows = run("browse", "browsed", "--first", 1, "--end", 3)
        assert [(each["position"], each["body_size"]) for each in rows] == [(1, 3), (2, 1)]
        assert (rows[0]["body"], rows[1]["body_base64"]) == ("two", "/w==")
    assert_documented(rows[0] | rows[1])
    cut = run("browse", "browsed", "--body-bytes", 1, "--count", 1, "--from", "any")
    assert (cut["body"], cut["body_size"], cut["persistent"]) == ("o", 3, True)
    assert invoke(["browse", "browsed", "--first", "3"]) == 0
    assert capsysbinary.readouterr().out == b"3\tfour\n"
    run("queue", "purge", "browsed")
    assert invoke(["browse", "browsed", "--first", "0"]) == 1
    assert b"positions 0 to 3 can't be read any more" in capsysbinary.readouterr().err
    assert run("browse", "browsed") == []


def test_queues_are_declared_listed_shown_and_deleted(
    run: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    status = run("cluster", "status")
    assert [(each["node"], each["state"]) for each in status["nodes"]] == [("node1", "running")]
    assert run("queue", "declare", "made.1")["replicas_wanted"] == 1
    run("queue", "declare", "made.2")
    assert names_of(run("queue", "list", "made")) == ["made.1", "made.2"]
    assert run("queue", "list", "nothing") == []
    shown = run("queue", "show", "made.1")
    assert [(each["node"], each["synchronised"]) for each in shown["ring"]] == [("node1", True)]
    assert shown["durable"]
    run("queue", "show", "none", code=1)
    run("promote", "made.1", "nobody", code=1)
    epoch = shown["epoch"]
    assert invoke(["promote", "made.1", "node1"]) == 0
    assert capsysbinary.readouterr().out == (
        b"queue made.1: node1 is the master already, epoch %d\n" % epoch
    )
    assert run("queue", "delete", "made.2")["messages"] == 0
    assert names_of(run("queue", "list", "made")) == ["made.1"]
    run("queue", "declare", "made.1", "--exact")
    run("queue", "declare", "made.3", "--replicas", 1, "--max-length", 3)
    run("queue", "declare", "made.3")
    run("queue", "declare", "made.3", "--exact", code=1)
    run("queue", "declare", "made.3", "--exact", "--replicas", 1, "--max-length", 3)
    run("queue", "delete", "made.3")


def test_connections_are_listed_with_their_states(
    run: Run, cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run("cluster", "connections") == {"connections": [], "silent_nodes": []}
    run("queue", "declare", "connected")
    with (
        ringmq.connect_sync(cluster.seeds) as client,
        client.publisher("connected"),
        client.consumer("connected"),
    ):
        (found,) = run("cluster", "connections")["connections"]
        assert (found["publishers"], found["consumers"], found["relayed"]) == (1, 1, False)
        assert (found["node"], found["state"], found["flow_reasons"]) == ("node1", "running", [])
        assert_documented(found)
        assert invoke(["cluster", "connections"]) == 0
        assert b"node1\tipv4:127.0.0.1:" in capsysbinary.readouterr().out


def test_consumers_of_a_queue_are_listed(
    run: Run, cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run("queue", "declare", "consumed")
    assert run("queue", "consumers", "consumed") == []
    with (
        ringmq.connect_sync(cluster.seeds) as client,
        client.publisher("consumed") as publisher,
        client.consumer("consumed", prefetch=3, priority=2, consumer_tag="t") as consumer,
    ):
        publisher.publish_batch([b"one", b"two"])
        batch = consumer.next_batch(timeout_s=10.0)
        assert batch is not None
        assert len(batch) == 2
        consumer.ack(batch[0].position, wait=True)
        (found,) = run("queue", "consumers", "consumed")
        assert found == found | {
            "consumer_tag": "t",
            "node": "node1",
            "state": "up",
            "active": True,
            "ack_required": True,
            "prefetch_messages": 3,
            "priority": 2,
            "exclusive": False,
            "share_messages": None,
            "messages_unacknowledged": 1,
            "bytes_unacknowledged": 3,
        }
        (connection,) = run("cluster", "connections")["connections"]
        assert (found["node"], found["peer"]) == (connection["node"], connection["peer"])
        assert_documented(found)
        assert client.operator.consumers("consumed")[0].consumer_tag == "t"
        assert invoke(["queue", "consumers", "consumed"]) == 0
        shown = capsysbinary.readouterr().out.decode().splitlines()
        row = ("t", "node1", found["peer"], "up", "required", "3", "1", "3", "2", "no", "no")
        assert shown[-1].split("\t") == [*row]
    assert invoke(["queue", "consumers", "nowhere"]) == 1
    assert b"nowhere" in capsysbinary.readouterr().err


def test_rules_are_flags_of_declarations_and_policies(run: Run) -> None:
    rules = ("--max-length", 3, "--overflow", "reject-publish", "--message-ttl-ms", 600_000)
    assert run("queue", "declare", "ruled", *rules)["wanted"]["max_length"] == "3"
    run("queue", "declare", "ruled", "--max-length", 4, code=1)
    run("queue", "declare", "other", "--overflow", "drop-some", code=2)
    run("queue", "declare", "other", "--expires-ms", 0, code=2)
    assert run("publish", "ruled", "--count", 3)["confirmed"] == 3
    run("publish", "ruled", "--count", 1, code=1)
    assert run("queue", "show", "ruled")["rejected_total"] == 1
    made = run("policy", "set", "ruled", "^ruled$", "--max-length", 2, "--expires-ms", 600_000)
    assert (made["max_length"], made["expires_ms"], made["overflow"]) == (2, 600_000, None)
    assert run("queue", "show", "ruled")["wanted"]["max_length"] == "2"
    run("policy", "delete", "ruled")


def test_exchanges_bindings_and_vhosts(run: Run, tmp_path: Path) -> None:
    run("queue", "declare", "bound")
    made = run("exchange", "declare", "events", "--type", "topic", "--alternate-exchange", "spare")
    assert (made["type"], made["durable"], made["alternate_exchange"]) == ("topic", True, "spare")
    assert run("binding", "add", "events", "bound", "a.#")["created"]
    assert not run("binding", "add", "events", "bound", "a.#")["created"]
    assert run("binding", "add", "amq.match", "bound", "-a", "h=1=2", "-a", "any")["created"]
    rows = run("binding", "list", "--destination", "bound")
    assert [(each["source"], each["arguments"]) for each in rows] == [
        ("amq.match", {"any": None, "h": "1=2"}),
        ("events", {}),
    ]
    run("exchange", "declare", "events", code=1)
    run("exchange", "delete", "events", "--if-unused", code=1)
    run("exchange", "declare", "amq.mine", code=1)
    assert run("vhost", "create", "shop")["created"]
    run("queue", "declare", "bound", "--vhost", "shop")
    run("vhost", "delete", "shop", code=1)
    file = tmp_path / "definitions.json"
    assert invoke(["definitions", "export", str(file)]) == 0
    assert run("vhost", "delete", "shop", "--force")["queues"] == 1
    run("queue", "list", "--vhost", "shop", code=1)
    assert run("binding", "remove", "events", "bound", "a.#")["removed"]
    run("exchange", "delete", "events")
    done = run("definitions", "import", file)
    # The vhost, its queue, the exchange and its binding.
    assert (done["created"], done["unmapped"], done["failed"]) == (4, [], [])
    assert "events" in [each["exchange"] for each in run("exchange", "list")]
    assert {each["vhost"] for each in run("vhost", "list")} == {"/", "shop"}
    file.write_text('{"queues": [{"name": "q", "vhost": "' + "v" * 81 + '"}], "users": [1]}')
    done = run("definitions", "import", file, code=1)
    assert [len(done[each]) for each in ("unmapped", "failed")] == [1, 1]
    file.write_text(
        '{"queues": [{"name": "in-shop"}], "policies": [{"name": "moved", "pattern": "^in-shop",'
        ' "definition": {"ha-mode": "nodes", "ha-params": ["rabbit@old"]}}]}'
    )
    shop = ("--vhost", "shop")
    done = run("definitions", "import", file, *shop, code=1)
    assert (done["created"], len(done["failed"])) == (1, 1)
    assert "--node rabbit@old=NODE" in done["failed"][0]
    run("definitions", "import", file, *shop, "--node", "rabbit@old=nobody", code=2)
    done = run("definitions", "import", file, *shop, "--node", "rabbit@old=node1")
    assert (done["created"], done["existing"]) == (1, 1)
    assert names_of(run("queue", "list", *shop)) == ["bound", "in-shop"]
    assert run("policy", "list", *shop)[0]["mirrors"]["nodes"] == ["node1"]
    file.write_text("[")
    run("definitions", "import", file, code=2)
    run("definitions", "import", tmp_path / "none", code=1)
    run("vhost", "delete", "shop", "--force")
    run("queue", "delete", "bound", "--force")


def test_a_listed_binding_can_be_pasted_into_remove(
    run: Run, cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def told(*words: str, code: int = 0) -> tuple[str, str]:
        assert invoke(["binding", *words]) == code
        out, err = capsysbinary.readouterr()
        return out.decode(), err.decode()

    run("queue", "declare", "typed")
    pair = ("amq.headers", "typed")
    for arguments in (["-a", "n:=5"], ["-a", "n=5"], ["-a", "r=a b", "-a", "any"]):
        told("add", *pair, *arguments)
    rows = [row.split("\t") for row in told("list", "--source", "amq.headers")[0].splitlines()]
    assert {row[-1] for row in rows[1:]} == {"n:=5", "n=5", "any 'r=a b'"}
    # One that differs in a type is none that is there, as with all else that is deleted.
    out, err = told("remove", *pair, "-a", "n:=5.0", code=1)
    assert out == ""
    assert err.startswith("ringmq: there is no binding from 'amq.headers' to queue 'typed'")
    assert "-a n:=5.0" in err
    assert not run("binding", "remove", *pair, "-a", "n:=true", code=1)["removed"]
    for row in rows[1:]:
        pasted = [word for each in shlex.split(row[-1]) for word in ("-a", each)]
        assert told("remove", *pair, *pasted) == ("amq.headers -> typed: unbound\n", "")
    assert run("binding", "list", "--source", "amq.headers") == []
    with ringmq.connect_sync(cluster.seeds) as client:
        client.topology.bind(*pair, arguments={"list": [1, b"hi"]})
    assert run("binding", "list", "--source", "amq.headers")[0]["arguments"] == {
        "list": [1, "6869"]
    }
    run("queue", "delete", "typed")


def test_a_transient_queue_writes_no_journal(run: Run) -> None:
    assert not run("queue", "declare", "t", "--transient")["durable"]
    assert not run("queue", "declare", "t")["durable"]
    run("queue", "declare", "t", "--durable", code=1)
    run("queue", "declare", "durable")
    run("queue", "declare", "durable", "--transient", code=1)
    assert run("publish", "t", "--count", 100)["confirmed"] == 100
    assert run("queue", "show", "t")["storage"]["journal_bytes_written"] == 0
    assert [each["durable"] for each in run("queue", "list", "t")] == [False]
    run("queue", "delete", "t")


def test_a_lazy_queue_says_where_its_messages_are(
    run: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
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
    assert numbers["message_store_bytes_written"] >= storage["body_bytes_stored"]
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


def test_lines_go_in_and_come_out(run: Run, tmp_path: Path) -> None:
    run("queue", "declare", "lines")
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n\nthree \xff\nfour")
    sent = run("publish", "lines", "--file", lines)
    assert (sent["published"], sent["confirmed"]) == (4, 4)
    looked = run("consume", "lines", "--requeue", "--count", 2)
    assert [each["body"] for each in looked] == ["one", ""]
    taken = run("consume", "lines", "--count", 3)
    said = {"position": 0, "redelivered": True, "delivery_count": 1, "body": "one"}
    assert taken[0] == said | {"exchange": "", "routing_key": "lines"}
    assert taken[2]["body_base64"] == "dGhyZWUg/w=="
    last = run("consume", "lines")
    assert (last["position"], last["body"]) == (3, "four")
    assert run("consume", "lines") == []
    assert run("publish", "lines", "--count", 30, "--size", 10)["confirmed"] == 30
    assert len(run("consume", "lines", "--reject", "--prefetch", 2, "--count", 10)) == 10
    assert len(run("consume", "lines", "--auto-ack", "--priority", -1, "--exclusive")) == 20
    assert run("queue", "show", "lines")["messages_ready"] == 0
    run("queue", "declare", "others")
    for queue in ("lines", "others"):
        assert run("publish", queue, "--count", 20, "--size", 10)["confirmed"] == 20
    both = run("consume", "lines", "others", "--shared-prefetch", 3, "--shared-prefetch-bytes", 999)
    assert sorted(each["queue"] for each in both) == ["lines"] * 20 + ["others"] * 20


def test_published_messages_have_further_keys_and_a_time_to_live(run: Run) -> None:
    for queue in ("keys1", "keys2", "keys3"):
        run("queue", "declare", queue)
        run("binding", "add", "amq.topic", queue, f"{queue}.#")
    keys = ("--routing-key", "keys1.a", "--cc", "keys2.b", "--cc", "keys1.b", "--bcc", "keys3.c")
    sent = run("publish", "--exchange", "amq.topic", *keys, "--count", 5)
    assert (sent["exchange"], sent["confirmed"]) == ("amq.topic", 5)
    for queue in ("keys1", "keys2", "keys3"):
        assert run("queue", "show", queue)["messages_ready"] == 5
    # Born expired: nobody is there to take it at once.
    assert run("publish", "keys1", "--count", 3, "--ttl-ms", 0)["confirmed"] == 3
    assert len(run("consume", "keys1")) == 5


def test_removals_count_their_messages(run: Run) -> None:
    run("queue", "declare", "removals")
    assert run("publish", "removals", "--count", 2500, "--size", 10)["confirmed"] == 2500
    assert run("queue", "purge", "removals")["messages"] == 2500
    discarded = run("queue", "discard-damaged", "removals")
    assert discarded == {"queue": "removals", "messages": 0}
    assert run("queue", "show", "removals")["messages_damaged"] == 0


def test_the_bench_judges_queues_of_its_own(run: Run) -> None:
    before = names_of(run("queue", "list"))
    both = run("bench", "both", "--count", 2001, "--queues", 2, "--size", 64, "--window", 100)
    assert (both["count"], both["confirmed"], both["consumed"]) == (2001, 2001, 2001)
    assert {name: both[name] for name in BROKEN} == dict.fromkeys(BROKEN, 0)
    assert_documented(both)
    assert both["confirm_ms"]["p50"] > 0 < both["end_to_end_ms"]["max"]
    # Bodies without room for a stamp are only counted.
    small = run("bench", "both", "--count", 500, "--size", 3)
    assert (small["consumed"], small["lost"], small["end_to_end_ms"]) == (500, None, None)
    assert run("bench", "consume", "--count", 1000)["lost"] == 0
    assert run("bench", "publish", "--seconds", 0.2)["count"] > 0
    assert names_of(run("queue", "list")) == before


def test_the_bench_does_not_judge_an_existing_queue(run: Run) -> None:
    run("queue", "declare", "benched")
    published = run("bench", "publish", "--queue", "benched", "--count", 300, "--window", 1)
    assert (published["confirmed"], published["nacked"]) == (300, 0)
    # `both` would count the 300 messages that are in the queue.
    run("bench", "both", "--queue", "benched", code=1)
    consumed = run("bench", "consume", "--queue", "benched")
    assert (consumed["consumed"], consumed["lost"]) == (300, None)


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "declare", "new", "--replicas", 5_000_000_000],
        ["queue", "declare", "new", "--min-insync", 5_000_000_000],
        ["bench", "both", "--count", 10, "--prefetch", 5_000_000_000],
        ["queue", "declare", NOT_UTF8],
        ["publish", NOT_UTF8, "--count", 1],
        ["consume", NOT_UTF8],
    ],
    ids=lambda words: " ".join(map(ascii, words)),
)
def test_arguments_that_the_wire_can_not_carry_are_wrong_usage(run: Run, words: list[Any]) -> None:
    run(*words, code=2)


def test_store_finds_a_queue_by_its_name(
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From `cluster up` to `cluster down`, and a look at the stopped node's disk."""
    run = run_json(capsysbinary)
    local = ("--data", tmp_path / "cluster")
    up = ("cluster", "up", "--nodes", 1, "--base-port", 0, *local)
    address = run(*up)["nodes"][0]["address"]
    try:
        # The ports of a running cluster stay, even if any free ones would do.
        assert run(*up)["nodes"][0]["address"] == address
        monkeypatch.setenv("RINGMQ_SEEDS", address)
        for name in ("q", "q2"):
            run("queue", "declare", name)
            # Without a message a queue has nothing on the disk.
            assert run("publish", name, "--count", 1)["confirmed"] == 1
        ids = {each["queue"]: each["id"] for each in run("queue", "list")}
        assert run("queue", "show", "q")["id"] == ids["q"] != "q"
        report = run("cluster", "kill", address, *local)
        assert_documented(report)
        assert (report["node"], report["killed"]) == ("node1", True)
        assert run("cluster", "kill", "node1", *local)["killed"] is False
        run("cluster", "kill", "node2", *local, code=1)
        again = run("cluster", "up", "--nodes", 1, *local)
        assert again["nodes"][0]["address"] == address
        assert run("queue", "show", "q")["id"] == ids["q"]
    finally:
        assert run("cluster", "down", *local)["killed"] == []
    data = tmp_path / "cluster" / "node1"
    for word in ("q", ids["q"]):
        shown = run("store", "inspect", data, "--queue", word)
        assert (shown["queue"], shown["name"]) == (ids["q"], "q")
    statistics = run("store", "stats", data)
    assert {each["name"]: each["queue"] for each in statistics["queues"]} == ids

    again = run("cluster", "up", "--nodes", 1, *local)
    try:
        monkeypatch.setenv("RINGMQ_SEEDS", again["nodes"][0]["address"])
        assert run("queue", "delete", "q2")["messages"] == 1
    finally:
        run("cluster", "down", *local)


def test_consume_beyond_its_windows(run: Run, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    def refused(*words: object) -> tuple[int, str]:
        assert invoke(["consume", "beyond", "--requeue", *map(str, words)]) == 1
        out, err = capsysbinary.readouterr()
        return out.count(b"\n"), err.decode()

    run("queue", "declare", "beyond")
    assert run("publish", "beyond", "--count", 2500, "--size", 10)["confirmed"] == 2500
    # A look ends when it can hold no more bytes, or no more messages.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringmq_node.cli.messages.look.HELD_BYTES_MAX", 10_000)
        assert refused()[0] == 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringmq_node.cli.messages.look.HELD_MESSAGES_MAX", 100)
        printed, said = refused("--count", 2000)
        assert printed == 100
        assert "stopped after 100 messages, 1000 bytes" in said
        assert len(run("consume", "beyond", "--requeue", "--count", 100)) == 100
    assert run("queue", "show", "beyond")["messages_ready"] == 2500
    # Consuming goes on beyond the prefetch window, in messages and in bytes.
    taken = run("consume", "beyond", "--count", 2100)
    assert [each["position"] for each in taken] == list(range(2100))
    assert run("queue", "purge", "beyond")["messages"] == 400
    assert run("publish", "beyond", "--count", 30, "--size", 1_000_000)["confirmed"] == 30
    assert len(run("consume", "beyond", "--count", 20)) == 20
    assert len(run("consume", "beyond")) == 10


def test_the_demo_loses_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = invoke(["demo", "--count", "20000", "--data", str(tmp_path / "demo"), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads(out)
    assert (report["published"], report["confirmed"], report["consumed"]) == (20000,) * 3
    assert {name: report[name] for name in BROKEN} == dict.fromkeys(BROKEN, 0)
    assert report["killed"] is not None
    assert 0 < report["failover_ms"] < 3000
    assert_documented(report)
    assert report["resynchronised"]
    assert report["digests_equal"]
    assert not (tmp_path / "demo").exists()
    assert "is killed" in err


def test_policies_are_set_listed_and_deleted(run: Run) -> None:
    run("queue", "declare", "ordered", "--master-locator", "client-local")
    keys = ("--min-insync", 1, "--sync-mode", "manual", "--sync-rate-bytes-max", 4096)
    more = ("--mirrors", "nodes:node1", "--master-locator", "random", "--priority", 3)
    rest = ("--forced-promotion", "refused", "--mode", "lazy")
    made = run("policy", "set", "p", "^ordered$", *keys, *more, *rest)
    assert (made["applies_to"], made["apply_to"]) == (1, "queues")
    bound = run("policy", "set", "p", "^ordered$", "--operator", "--mirrors", "exactly:2")
    assert bound["mirrors"] == {"count": 2, "nodes": None}
    listed = run("policy", "list")
    assert [(each["policy"], each["is_operator"]) for each in listed] == [("p", False), ("p", True)]
    assert listed[0] == {key: value for key, value in made.items() if key != "applies_to"}
    shown = run("queue", "show", "ordered")
    assert (shown["policy"], shown["operator_policy"]) == ("p", "p")
    assert shown["wanted"] == {
        "mirrors": "exactly 2 of node1",
        "min_insync": "1",
        "sync_mode": "manual",
        "sync_rate_bytes_max": "4096",
        "master_locator": "client-local",
        "forced_promotion": "refused",
        "mode": "lazy",
    }
    assert shown["mode"] == "lazy"
    run("policy", "set", "p", "x", "--mode", "slow", code=2)
    run("policy", "delete", "p", "--operator")
    run("policy", "delete", "p")
    run("policy", "delete", "p", code=1)
    assert run("policy", "list") == []
    run("policy", "set", "p", "(", "--min-insync", 1, code=2)
    run("policy", "set", "p", "x", code=2)


def test_an_exchange_shows_the_alternate_that_a_policy_gives_it(run: Run) -> None:
    for name in ("orders", "declared"):
        more = ("--alternate-exchange", "mine") if name == "declared" else ()
        run("exchange", "declare", name, *more)
    words = ("policy", "set", "spare", "^orders|^declared", "--alternate-exchange", "unrouted")
    run(*words, code=2)
    made = run(*words, "--apply-to", "exchanges")
    assert (made["applies_to"], made["alternate_exchange"]) == (2, "unrouted")
    shown = run("exchange", "show", "orders")
    assert (shown["alternate_exchange"], shown["effective_alternate_exchange"]) == (
        None,
        "unrouted",
    )
    assert shown["policy"] == "spare"
    listed = {each["exchange"]: each for each in run("exchange", "list")}
    assert listed["orders"] == shown
    assert listed["declared"]["effective_alternate_exchange"] == "mine"
    assert listed["amq.topic"]["policy"] is None
    run("policy", "delete", "spare")
    assert run("exchange", "show", "orders")["effective_alternate_exchange"] is None
    run("exchange", "show", "nothing", code=1)


def test_nodes_are_listed_drained_revived_and_forgotten(run: Run) -> None:
    run("queue", "declare", "only-here")
    (listed,) = [run("node", "list")]
    node = listed[0] if isinstance(listed, list) else listed
    assert (node["node"], node["state"], node["drained"]) == ("node1", "running", False)
    assert node["queues_needing"] >= 1
    # Its queues have no other replica, so it can't be done.
    left = run("node", "drain", "node1", "--wait", 0)
    assert (left["done"], left["drained"], left["state"]) == (False, True, "draining")
    run("node", "drain", "node1", "--wait", 0.3, code=1)
    assert run("node", "revive", "node1") == {"node": "node1", "done": True}
    run("node", "forget", "node1", code=1)
    run("node", "revive", "nobody", code=1)
    assert run("queue", "rebalance", "--dry-run") == []


def test_messages_that_were_set_aside_go_back_to_their_queue_of_a_vhost(
    run: Run, tmp_path: Path
) -> None:
    run("vhost", "create", "aside")
    run("queue", "declare", "q", "--vhost", "aside")
    name = join_name("aside", "q")
    info = SetAsideInfo("id", name, "a", 3, 40, 100, 101, 4, 3, 20, confirmed=True, at_s=7)
    with closing(FileDisk()) as disk:
        writer = SetAsideWriter(disk, tmp_path, info)
        writer.begin()
        told = Properties(message_id="m", headers=fields_to_wire({"h": b"hi"}))
        block = Block.of([b"a"], [told.SerializeToString()])
        writer.add([queue_run.Run(100, block, transient=False, redelivered=False)])
        writer.finish(missing=0)
    (listed,) = run("set-aside", "list", tmp_path)["set_aside"]
    exported = run("set-aside", "export", tmp_path, listed["name"])
    assert exported == {
        "position": 100,
        "transient": False,
        "exchange": "",
        "routing_key": "q",
        "headers": {"h": "6869"},
        "properties": {"message_id": "m"},
        "body_base64": "YQ==",
    }
    report = run("set-aside", "publish", tmp_path, listed["name"])
    assert report == {"queue": "q", "published": 1, "enqueued_before": 0}
    assert run("consume", "q", "--vhost", "aside")["body"] == "a"
    assert (listed["vhost"], listed["queue"]) == ("aside", "q")


def test_messages_that_were_set_aside_are_as_they_were(run: Run, tmp_path: Path) -> None:
    run("queue", "declare", "again", "--max-priority", 5)
    info = SetAsideInfo("id", "again", "a", 3, 40, 100, 105, 4, 3, 20, confirmed=True, at_s=7)
    death = Death(
        reason="rejected", queue="work", count=3, time_ms=11, exchange="e", routing_keys=["k"]
    )
    first = FirstDeath(reason="expired", queue="before", exchange="e")
    told = {
        b"plain": Properties(),
        b"letter": Properties(
            exchange="letters",
            routing_key="k",
            cc=["l"],
            deaths=[death],
            first_death=first,
            headers=fields_to_wire({"h": "hi"}),
        ),
        b"urgent": Properties(priority=5, message_id="m"),
        b"lives": Properties(expiration_ms=3_600_000),
        b"dies": Properties(expiration_ms=1),
        # As large as a node takes them, and then it notes more.
        b"large": Properties(
            correlation_id="y" * (128 * KIB - 4), exchange="letters", routing_key="k", priority=1
        ),
    }
    with closing(FileDisk()) as disk:
        writer = SetAsideWriter(disk, tmp_path, info)
        writer.begin()
        block = Block.of([*told], [each.SerializeToString() for each in told.values()])
        writer.add([queue_run.Run(100, block, transient=False, redelivered=False)])
        writer.finish(missing=0)
    (listed,) = run("set-aside", "list", tmp_path)["set_aside"]
    exported = {
        base64.b64decode(row.pop("body_base64")).decode(): row
        for row in run("set-aside", "export", tmp_path, listed["name"])
    }
    assert run("set-aside", "publish", tmp_path, listed["name"])["published"] == 6
    # Of which one has expired.
    found = run("consume", "again")
    assert [row["body"] for row in found] == ["urgent", "large", "plain", "letter", "lives"]
    exported["large"] |= {"exchange": "", "routing_key": "again"}
    for row in found:
        for before in ("position", "transient"):
            exported[row["body"]].pop(before)
        for new in ("position", "redelivered", "delivery_count"):
            row.pop(new)
        assert row == exported[row.pop("body")]
    assert found[3]["deaths"][0]["count"] == 3
