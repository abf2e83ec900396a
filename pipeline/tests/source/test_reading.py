"""Batch queries: the rows of a range, however it is read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from live_node import LiveNode
from pipeline.tests.source.sources import Query, batch_rows, options_for

from pyspark_ringmq.batch import BatchReader
from pyspark_ringmq.planning import NoQueueError
from ringmq import Properties
from ringmq_pipeline.offsets import DataLossError
from ringmq_pipeline.options import parse
from ringmq_pipeline.schema import arrow_schema

PROPERTIES = Properties(
    message_id="m",
    correlation_id="c",
    content_type="text/plain",
    timestamp_ms=1_700_000_000_123,
    headers={"a": "1"},
)


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["body"] for row in rows]


@pytest.mark.parametrize("encoding", ["proto", "arrow"])
def test_a_row_has_all_that_its_message_has(live: LiveNode, encoding: str) -> None:
    queue = f"rows {encoding}"
    live.fill(queue, [b"one", b"", b"three"], PROPERTIES)
    live.publish(queue, [b"four"])
    rows = batch_rows(live.address, queue, encoding=encoding, includeHeaders="true")
    assert bodies(rows) == [b"one", b"", b"three", b"four"]
    assert [row["position"] for row in rows] == [0, 1, 2, 3]
    first, last = rows[0], rows[3]
    assert {name: first[name] for name in ("queue", "epoch", "body_size", "redelivered")} == {
        "queue": queue,
        "epoch": 0,
        "body_size": 3,
        "redelivered": False,
    }
    assert first["published_at"].timestamp() == 1_700_000_000.123
    assert (first["message_id"], first["correlation_id"], first["reply_to"]) == ("m", "c", None)
    assert (first["headers"], first["persistent"]) == ([("a", "1")], True)
    assert (last["message_id"], last["published_at"], last["content_type"]) == (None, None, None)


@pytest.mark.parametrize("encoding", ["proto", "arrow"])
@pytest.mark.parametrize(
    ("payload", "expected"), [("full", b"abcdef"), ("head:2", b"ab"), ("none", None)]
)
def test_bodies_are_read_as_far_as_asked(
    live: LiveNode, encoding: str, payload: str, expected: bytes | None
) -> None:
    queue = f"payload {encoding} {payload}"
    live.fill(queue, [b"abcdef"] * 3)
    rows = batch_rows(live.address, queue, encoding=encoding, payload=payload)
    assert bodies(rows) == [expected] * 3
    assert [row["body_size"] for row in rows] == [6] * 3


@pytest.mark.parametrize("encoding", ["proto", "arrow"])
def test_batches_have_exactly_the_declared_schema(live: LiveNode, encoding: str) -> None:
    """Spark compares every type, and looks at the first batch only."""
    queue = f"schema {encoding}"
    live.fill(queue, [b"plain"] * 20_000)
    live.publish(queue, [b"with"] * 3, PROPERTIES)
    reader = BatchReader(parse(options_for(live.address, queue, encoding=encoding)))
    [partition] = reader.partitions()
    batches = [*reader.read(partition)]
    assert {batch.schema for batch in batches} == {arrow_schema(include_headers=False)}
    assert sum(batch.num_rows for batch in batches) == 20_003
    assert len(batches) <= 4


def test_a_batch_is_a_piece_of_a_browse_or_little_more(live: LiveNode) -> None:
    """Larger ones fall out of the caches; smaller ones cost Spark a batch each."""
    live.fill("pieces", [bytes(1024)] * 5000)
    reader = BatchReader(parse(options_for(live.address, "pieces")))
    [partition] = reader.partitions()
    sizes = [batch.nbytes for batch in reader.read(partition)]
    assert max(sizes) < 3 << 19
    assert len(sizes) <= 7


def test_tasks_read_a_range_without_gaps_or_overlaps(live: LiveNode) -> None:
    live.fill("cut", [b"%d" % number for number in range(100)])
    options = parse(options_for(live.address, "cut", minPartitions="7"))
    cut = BatchReader(options).partitions()
    assert len(cut) == 7
    spans = [(part.value.first, part.value.end) for part in cut]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert bodies(batch_rows(live.address, "cut", minPartitions="7")) == [
        b"%d" % number for number in range(100)
    ]


def test_a_query_begins_and_ends_where_the_options_say(live: LiveNode) -> None:
    live.fill("between", [b"%d" % number for number in range(10)])
    rows = batch_rows(
        live.address, "between", startingOffsets='{"between": 3}', endingOffsets='{"between": 6}'
    )
    assert bodies(rows) == [b"3", b"4", b"5"]
    assert batch_rows(live.address, "between", startingOffsets="latest") == []


def test_several_queues_are_named_or_matched(live: LiveNode) -> None:
    live.fill("family a", [b"a"])
    live.fill("family b", [b"b"])
    live.fill("the family", [b"c"])
    matched = batch_rows(live.address, "", queuePattern="family .*")
    assert {row["queue"]: row["body"] for row in matched} == {"family a": b"a", "family b": b"b"}
    assert matched == batch_rows(live.address, "", queues="family b, family a")


def test_a_queue_that_is_not_there_is_named(live: LiveNode) -> None:
    with pytest.raises(NoQueueError, match="no queue 'nowhere': declare it first"):
        batch_rows(live.address, "nowhere")


@pytest.mark.parametrize("encoding", ["proto", "arrow"])
def test_a_range_that_was_purged_meanwhile_is_a_loss_with_its_name(
    live: LiveNode, encoding: str
) -> None:
    queue = f"purged {encoding}"
    live.fill(queue, [b"x"] * 10)
    strict = BatchReader(parse(options_for(live.address, queue, encoding=encoding)))
    lax = BatchReader(
        parse(options_for(live.address, queue, encoding=encoding, failOnDataLoss="false"))
    )
    [partition] = strict.partitions()
    live.client.purge_queue(queue)
    with pytest.raises(DataLossError, match=rf"queue '{queue}': positions 0 to 9 can't be read"):
        next(strict.read(partition))
    assert [*lax.read(partition)] == []


@pytest.mark.parametrize("ack_mode", ["never", "committed"])
def test_a_start_above_its_queue_is_no_empty_query(
    live: LiveNode, caplog: pytest.LogCaptureFixture, ack_mode: str
) -> None:
    queue = f"start above {ack_mode}"
    live.fill(queue, [b"x"] * 10)
    above = {"startingOffsets": f'{{"{queue}": 20}}'}
    stream = {**above, "ackMode": ack_mode}
    with pytest.raises(DataLossError, match=rf"'{queue}': positions 10 to 19 .* next position"):
        batch_rows(live.address, queue, **above)
    with pytest.raises(DataLossError, match="positions 10 to 19"):
        Query(live.address, queue, **stream).trigger()
    # What comes next is at the end: a table that was filled up to there goes on with it.
    at_end = {"startingOffsets": f'{{"{queue}": 10}}'}
    assert batch_rows(live.address, queue, **at_end) == []
    lax = Query(live.address, queue, failOnDataLoss="false", **stream)
    assert lax.trigger() == []
    assert "positions 10 to 19 can't be read" in caplog.text
    live.publish(queue, [b"next"])
    assert bodies(lax.trigger()) == [b"next"]


def test_a_range_that_ends_above_its_queue_is_read_as_far_as_it_goes(
    live: LiveNode, caplog: pytest.LogCaptureFixture
) -> None:
    live.fill("above", [b"%d" % number for number in range(10)])
    above = {"endingOffsets": '{"above": 20}'}
    with pytest.raises(DataLossError, match=r"positions 10 to 19 can't be read"):
        batch_rows(live.address, "above", **above)
    rows = batch_rows(live.address, "above", failOnDataLoss="false", **above)
    assert bodies(rows) == [b"%d" % number for number in range(10)]
    [said] = caplog.messages
    assert "positions 10 to 19 can't be read" in said


def test_a_queue_that_was_declared_anew_meanwhile_is_a_loss(live: LiveNode) -> None:
    live.fill("anew", [b"old"] * 5)
    reader = BatchReader(parse(options_for(live.address, "anew")))
    [partition] = reader.partitions()
    live.client.delete_queue("anew")
    live.fill("anew", [b"new"] * 9)
    with pytest.raises(DataLossError, match=r"positions 0 to 4 can't be read any more.* anew"):
        next(reader.read(partition))
