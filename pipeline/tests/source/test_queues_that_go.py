"""Queues that are deleted, purged or exclusive while queries read them, by name or by a pattern."""

from __future__ import annotations

from typing import Any

import pytest
from live_node import LiveNode
from pipeline.tests.source.sources import Query, batch_rows, options_for, rows_of
from pyspark.sql.streaming.datasource import ReadAllAvailable

import ringmq
from pyspark_ringmq.planning import NoQueueError, bounds_now
from ringmq_pipeline.connecting import named_queues
from ringmq_pipeline.leases import check_leases
from ringmq_pipeline.offsets import DataLossError
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.options import SourceOptions, parse


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_a_query_that_begins_again_says_that_its_queue_was_deleted(live: LiveNode) -> None:
    """As `ingest` does; it was told to declare the queue."""
    live.fill("deleted since", numbered(3))
    query = Query(live.address, "deleted since")
    query.trigger()
    query.end()
    live.client.delete_queue("deleted since")
    again = Query(live.address, "deleted since")
    again.at = query.at
    again.reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=r"positions from 3 on .* the queue has been deleted"):
        again.trigger()
    again.end()


def test_a_query_that_may_skip_goes_on_without_a_queue_that_was_deleted(live: LiveNode) -> None:
    """Also with the batch that was planned before."""
    names = {"queues": "gone a,gone b"}
    for queue in ("gone a", "gone b"):
        live.fill(queue, numbered(3))
    strict = Query(live.address, "", leaseHolder="me", **names)
    strict.begin()
    start = strict.at
    assert start is not None
    end = strict.reader.latestOffset(start, ReadAllAvailable())
    live.client.delete_queue("gone a")
    with pytest.raises(DataLossError, match=r"'gone a': positions 0 to 2 .* been deleted"):
        rows_of(strict.reader, strict.reader.partitions(start, end))
    lax = Query(live.address, "", leaseHolder="me", failOnDataLoss="false", **names)
    rows = rows_of(lax.reader, lax.reader.partitions(start, end))
    assert [row["queue"] for row in rows] == ["gone b"] * 3
    lax.at = end
    live.publish("gone b", [b"later"])
    lax.reader.prepareForTriggerAvailableNow()
    assert [(row["queue"], row["body"]) for row in lax.trigger()] == [("gone b", b"later")]
    assert lax.trigger() == []
    assert live.stat("gone b").messages == 0
    for each in (strict, lax):
        each.end()


@pytest.mark.parametrize("goes", ["purge", "delete"])
def test_messages_that_go_while_a_batch_is_planned_are_the_next_triggers_matter(
    live: LiveNode, monkeypatch: pytest.MonkeyPatch, goes: str
) -> None:
    """Between two calls to the broker: the query ended with the broker's own error."""
    queue = f"racing {goes}"
    live.fill(queue, numbered(3))
    strict = Query(live.address, queue, leaseHolder="me")
    lax = Query(live.address, queue, leaseHolder="me", failOnDataLoss="false")
    for query in (strict, lax):
        query.begin()

    def racing(*args: Any, **given: Any) -> Any:
        found = bounds_now(*args, **given)
        if goes == "purge":
            live.client.purge_queue(queue)
        else:
            live.client.delete_queue(queue)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("pyspark_ringmq.stream.bounds_now", racing)
        assert strict.trigger() == []
    with pytest.raises(DataLossError, match=f"'{queue}': positions"):
        strict.trigger()
    assert lax.trigger() == []
    for query in (strict, lax):
        query.end()


def test_a_purge_leaves_what_consumers_have_and_a_query_begins_behind_it(live: LiveNode) -> None:
    """The first message of the queue was below those that were purged."""
    live.fill("held", numbered(10))
    with live.client.consumer("held", prefetch=2) as consumer:
        assert consumer.next_batch(20) is not None
        live.client.purge_queue("held")
        live.publish("held", [b"new"])
        assert live.stat("held").first == 0
        assert [row["body"] for row in batch_rows(live.address, "held")] == [b"new"]
        query = Query(live.address, "held")
        assert [row["body"] for row in query.trigger()] == [b"new"]
        query.end()


# --- patterns ---


def test_a_pattern_leaves_exclusive_queues_out(live: LiveNode) -> None:
    """They belong to a client's connection, and go with it."""
    live.fill("kin a", numbered(2))
    with ringmq.connect_sync(live.address) as other:
        other.declare_queue("kin private", exclusive=True)
        assert len(batch_rows(live.address, "", queuePattern="kin .*")) == 2
        query = Query(live.address, "", queuePattern="kin .*")
        assert len(query.trigger()) == 2
        assert query.trigger() == []
        assert live.stat("kin a").messages == 0
        check_leases(parse(options_for(live.address, "", queuePattern="kin .*", lease="other")))
        query.end()
        with pytest.raises(ringmq.QueueLockedError):
            batch_rows(live.address, "kin private")


def test_a_queue_of_a_pattern_may_go_while_queues_are_listed(
    live: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.fill("fleeting a", numbered(2))

    def listed(options: SourceOptions) -> set[str]:
        live.client.declare_queue("fleeting b")
        found = named_queues(options)
        live.client.delete_queue("fleeting b")
        return found

    monkeypatch.setattr("pyspark_ringmq.planning.named_queues", listed)
    assert len(batch_rows(live.address, "", queuePattern="fleeting .*")) == 2
    query = Query(live.address, "", queuePattern="fleeting .*")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.trigger()) == 2
    assert query.trigger() == []
    query.end()


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_position_in_a_queue_that_a_pattern_has_not_is_refused(
    live: LiveNode, option: str
) -> None:
    """All was read, from the beginning: the name was mistyped."""
    name = f"typed by {option}"
    live.fill(f"{name} 1", numbered(5))
    pattern = {"queuePattern": f"{name} .*"}
    with pytest.raises(OptionError, match=rf"'typed1' isn't read: '{name} .*' doesn't match it"):
        batch_rows(live.address, "", **pattern, **{option: '{"typed1": 4}'})
    with pytest.raises(NoQueueError, match=f"no queue '{name} 2', which {option} names"):
        batch_rows(live.address, "", **pattern, **{option: f'{{"{name} 2": 4}}'})
    if option == "startingOffsets":
        with pytest.raises(NoQueueError, match=f"no queue '{name} 2'"):
            Query(live.address, "", **pattern, **{option: f'{{"{name} 2": 4}}'}).begin()
