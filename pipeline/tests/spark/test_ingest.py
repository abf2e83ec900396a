"""From a queue to a table with Spark between them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from live_node import LiveNode
from sparks import evidence

from ringmq import Properties
from ringmq_pipeline.cli import invoke
from ringmq_pipeline.jobs.decoding import Decoding, decode
from ringmq_pipeline.sinks.parquet import committed_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(live: LiveNode, queue: str, folder: Path, *more: str) -> int:
    places = ["--to", str(folder / "table"), "--checkpoint", str(folder / "checkpoint"), "--quiet"]
    return invoke(["ingest", "--queue", queue, "--endpoints", live.address, *places, *more])


def positions(files: list[str]) -> list[int]:
    found = pyarrow.dataset.dataset(files).to_table(columns=["position"])
    return sorted(found["position"].to_pylist())


def numbered(count: int) -> list[bytes]:
    return [b'{"id": %d}' % number for number in range(count)]


@pytest.mark.usefixtures("spark")
def test_a_queue_is_in_the_table_and_no_more_in_the_queue(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = "ingest delta"
    live.fill(queue, [*numbered(90), b"\xff", b"{half"])
    decoding = ("--decode", "json", "--quarantine", str(tmp_path / "bad"))
    limit = ("--option", "maxMessagesPerTrigger=50")
    assert ingest(live, queue, tmp_path, *decoding, *limit, "--value-schema", "id BIGINT") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["rows_quarantined"], summary["batches"]) == (90, 2, 2)
    assert (summary["ends"], summary["lag"]) == ({queue: 92}, 0)
    table = DeltaTable(tmp_path / "table")
    assert positions(table.file_uris()) == [*range(90)]
    errors = pyarrow.dataset.dataset(DeltaTable(tmp_path / "bad").file_uris()).to_table()
    assert sorted(errors["error"].to_pylist()) == [
        "the body is no JSON object of id BIGINT",
        "the body is no UTF-8",
    ]
    assert [each["first"] for each in json.loads(table.history(1)[0]["ringmq.ranges"])] == [50]
    # The bad ones, too: else they would keep the queue from ever being empty.
    stat = live.stat(queue)
    assert (stat.messages, stat.leases) == (0, ())


@pytest.mark.usefixtures("spark")
def test_folders_may_have_any_name(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With names as URIs have them, Spark writes to another folder, and a batch looks empty."""
    folder = tmp_path / "the lake's é#100"
    live.fill("any name", numbered(5))
    live.client.declare_queue("any name again")
    assert ingest(live, "any name", folder) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5
    again = ["--queue", "any name again", "--progress", str(folder / "progress"), "--quiet"]
    again += ["--from", str(folder / "table"), "--endpoints", live.address]
    assert invoke(["replay", *again]) == 0
    assert live.bodies("any name again") == numbered(5)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


@evidence
@pytest.mark.usefixtures("spark")
def test_a_checkpoint_that_is_older_than_its_queue_is_refused_with_the_range(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, kind = "ingest parquet", ("--format", "parquet")
    live.fill(queue, numbered(10))
    assert ingest(live, queue, tmp_path, *kind) == 0
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    live.publish(queue, numbered(20))
    assert ingest(live, queue, tmp_path, *kind) == 0
    assert positions([str(file) for file in committed_files(tmp_path / "table")]) == [*range(30)]
    capsys.readouterr()
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "older").rename(tmp_path / "checkpoint")
    live.publish(queue, numbered(1))
    assert ingest(live, queue, tmp_path, *kind) == 4
    assert "positions 10 to 29 can't be read any more" in capsys.readouterr().err


@evidence
def test_a_batch_that_both_tables_have_keeps_the_ids_that_it_had(
    spark: SparkSession, live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a death between the tables' commits and Spark's note that the batch is done."""
    queue = "ingest ids"
    words = ["--decode", "json", "--quarantine", str(tmp_path / "bad"), "--dedupe-window", "1 hour"]
    live.fill(queue, [b"[1]"], Properties(message_id="a"))
    live.publish(queue, [b"{half"], Properties(message_id="b"))
    # Else the newest batch is one without rows.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        assert ingest(live, queue, tmp_path, *words, "--option", "ackMode=never") == 0
        (tmp_path / "checkpoint/commits/0").unlink()
        (tmp_path / "checkpoint/commits/.0.crc").unlink()
        live.publish(queue, [b"[2]"], Properties(message_id="a"))
        live.publish(queue, [b"[3]"], Properties(message_id="c"))
        capsys.readouterr()
        assert ingest(live, queue, tmp_path, *words, "--option", "ackMode=never") == 0
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    summary = json.loads(capsys.readouterr().out)
    assert (summary["batches"], summary["batches_skipped"], summary["rows"]) == (2, 1, 1)
    assert positions(DeltaTable(tmp_path / "table").file_uris()) == [0, 3]


@evidence
@pytest.mark.logs("There was an exception while executing the Python Proxy")
@pytest.mark.usefixtures("spark")
def test_a_schema_that_is_refused_and_changed_back_loses_no_message(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = "ingest flip"
    words = ["--decode", "json", "--quarantine", str(tmp_path / "bad"), "--value-schema"]
    live.fill(queue, [b'{"id": 1}', b'{"id": "x"}'])
    assert ingest(live, queue, tmp_path, *words, "id BIGINT") == 0
    live.publish(queue, [b'{"id": 2}', b'{"id": "abc"}', b"\xff"])
    assert ingest(live, queue, tmp_path, *words, "id STRING, x INT") == 1
    told = capsys.readouterr().err
    assert "value: struct<id long> there, struct<id string, x integer> now" in told
    assert ingest(live, queue, tmp_path, *words, "id BIGINT") == 0
    assert positions(DeltaTable(tmp_path / "table").file_uris()) == [0, 2]
    assert positions(DeltaTable(tmp_path / "bad").file_uris()) == [1, 3, 4]
    assert live.stat(queue).messages == 0


@evidence
@pytest.mark.logs("There was an exception while executing the Python Proxy")
@pytest.mark.usefixtures("spark")
def test_a_table_that_was_deleted_gets_no_hole(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = "ingest deleted"
    live.fill(queue, numbered(4))
    assert ingest(live, queue, tmp_path) == 0
    shutil.rmtree(tmp_path / "table")
    live.publish(queue, numbered(3))
    for _ in range(2):
        # Its lease is free again.
        assert ingest(live, queue, tmp_path) == 1
        assert "no batch of this checkpoint" in capsys.readouterr().err
    assert live.stat(queue).messages == 3


@evidence
@pytest.mark.usefixtures("spark")
def test_a_clock_that_was_ahead_loses_no_message(
    live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, window = "ingest clock", ("--dedupe-window", "10 seconds")
    live.fill(queue, numbered(1), Properties(message_id="a"))
    assert ingest(live, queue, tmp_path, *window) == 0
    done = max((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda file: int(file.name))
    ahead_ms = int(time.time() * 1000) + 7_200_000
    done.write_text(f'v1\n{{"nextBatchWatermarkMs":{ahead_ms}}}')
    done.with_name(f".{done.name}.crc").unlink()
    live.publish(queue, numbered(3), Properties(message_id="b"))
    assert ingest(live, queue, tmp_path, *window) == 1
    assert "the clock was ahead" in capsys.readouterr().err
    assert live.stat(queue).messages == 3


@pytest.mark.parametrize("schema", ["id BIGINT", ""])
def test_a_body_is_one_json_value(spark: SparkSession, schema: str) -> None:
    """Spark's functions read the first one, and leave out what is behind it."""
    good = [b'{"id": 1}', b' {"id": 2}\n']
    bad = [b'{"id": 1}\n{"id": 2}', b'{"id": 1} x', b'{"id": 1}, {"id": 2}', b'{"id": 1}] x [2']
    bad += [b'{"id": 1}} x {"a": {"b": 1', b"", b" "]
    frame = spark.createDataFrame([(bytearray(body),) for body in good + bad], "body BINARY")
    decoded = decode(frame, Decoding.JSON, schema)
    assert decoded.bad is not None
    assert [bytes(row.body) for row in decoded.good.collect()] == good
    assert [bytes(row.body) for row in decoded.bad.collect()] == bad


@evidence
def test_json_without_a_schema_stays_text(spark: SparkSession) -> None:
    bodies = [bytearray(body) for body in (b"[1, 2]", b"[1,", b"\xff", b'"a"')]
    frame = spark.createDataFrame([(body,) for body in bodies], "body BINARY")
    decoded = decode(frame, Decoding.JSON)
    assert [row.value for row in decoded.good.collect()] == ["[1, 2]", '"a"']
    assert decoded.bad is not None
    assert [row.error for row in decoded.bad.collect()] == [
        "the body is no JSON",
        "the body is no UTF-8",
    ]
