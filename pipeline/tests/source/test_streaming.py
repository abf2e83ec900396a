"""Streaming queries: when messages leave the queue, limits, leases and losses."""

from __future__ import annotations

import pytest
from live_node import LiveNode, wait_until
from pipeline.tests.source.sources import Query, options_for, rows_of
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ringmq_pipeline.ending import end_query
from ringmq_pipeline.leases import SourceLeasedError
from ringmq_pipeline.offsets import DataLossError, from_json
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.options import parse


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_messages_leave_the_queue_when_their_batch_is_a_start(live: LiveNode) -> None:
    """Not when it has been read, and not when its job is done: Spark may ask for it again."""
    live.fill("leaving", numbered(10))
    query = Query(live.address, "leaving", maxMessagesPerTrigger="4")
    assert [row["body"] for row in query.trigger()] == numbered(4)
    assert live.stat("leaving").messages == 10
    assert len(query.trigger()) == 4
    assert live.stat("leaving").acked_end == 4
    assert len(query.trigger()) == 2
    # Nothing is new, and yet the last batch goes.
    assert query.trigger() == []
    assert live.stat("leaving").messages == 0
    query.end()


def test_a_query_from_the_latest_position_removes_nothing_that_nobody_has_read(
    live: LiveNode,
) -> None:
    live.fill("backlog", numbered(10))
    with pytest.raises(OptionError, match="'latest' would acknowledge all messages that are there"):
        Query(live.address, "backlog", startingOffsets="latest").trigger()
    assert (live.stat("backlog").messages, live.stat("backlog").leases) == (10, ())
    looking_on = Query(live.address, "backlog", startingOffsets="latest", ackMode="never")
    assert looking_on.trigger() == []
    live.publish("backlog", [b"new"])
    assert [row["body"] for row in looking_on.trigger()] == [b"new"]
    # A position is named by who knows what is before it.
    behind = Query(live.address, "backlog", startingOffsets='{"backlog": 4}')
    assert len(behind.trigger()) == 7
    behind.end()


def test_the_first_batch_begins_where_it_was_planned_to(live: LiveNode) -> None:
    """Spark keeps a batch's end alone, and asks again where the first one begins."""
    live.fill("busy", numbered(10))
    options = {"startingOffsets": "latest", "ackMode": "never"}
    query = Query(live.address, "busy", **options)
    query.begin()
    start = query.at
    assert start is not None
    live.publish("busy", numbered(2, 10))
    end = query.reader.latestOffset(start, ReadAllAvailable())
    live.publish("busy", numbered(2, 12))
    assert query.reader.initialOffset() == start
    rows = rows_of(query.reader, query.reader.partitions(start, end))
    assert [row["body"] for row in rows] == numbered(2, 10)
    # The query ends before that batch is done, and is started again.
    again = Query(live.address, "busy", **options)
    again.begin()
    assert again.at is not None
    rows = rows_of(again.reader, again.reader.partitions(again.at, end))
    assert [row["body"] for row in rows] == numbered(2, 10)
    again.at = end
    assert [row["body"] for row in again.trigger()] == numbered(2, 12)
    assert again.trigger() == []


def test_an_empty_first_batch_is_run_again_as_empty(live: LiveNode) -> None:
    live.fill("calm", numbered(3))
    options = {"startingOffsets": "latest", "ackMode": "never"}
    query = Query(live.address, "calm", **options)
    query.begin()
    assert query.at is not None
    end = query.reader.latestOffset(query.at, ReadAllAvailable())
    # Spark makes no second batch for the same offset.
    assert query.reader.latestOffset(end, ReadAllAvailable()) == end
    live.publish("calm", numbered(2, 3))
    again = Query(live.address, "calm", **options)
    again.begin()
    assert again.at is not None
    assert rows_of(again.reader, again.reader.partitions(again.at, end)) == []
    again.at = end
    assert [row["body"] for row in again.trigger()] == numbered(2, 3)


def test_a_purge_between_two_runs_of_the_first_batch_is_a_loss(live: LiveNode) -> None:
    """It began behind what was purged, and said nothing."""
    live.fill("planned", numbered(5))
    query = Query(live.address, "planned", leaseHolder="me")
    query.begin()
    assert query.at is not None
    end = query.reader.latestOffset(query.at, ReadAllAvailable())
    live.client.purge_queue("planned")
    again = Query(live.address, "planned", leaseHolder="me")
    again.begin()
    assert again.at is not None
    with pytest.raises(DataLossError, match="'planned': positions 0 to 4 can't be read"):
        rows_of(again.reader, again.reader.partitions(again.at, end))
    for each in (query, again):
        each.end()


def test_with_ack_mode_never_they_stay(live: LiveNode) -> None:
    live.fill("staying", numbered(3))
    query = Query(live.address, "staying", ackMode="never")
    assert len(query.trigger()) == 3
    assert query.trigger() == []
    assert (live.stat("staying").messages, live.stat("staying").leases) == (3, ())


def test_a_batch_ends_at_the_limit_of_bytes(live: LiveNode) -> None:
    live.fill("bytes", [b"x" * 1000] * 50)
    query = Query(live.address, "bytes", maxBytesPerTrigger="10000")
    assert len(query.trigger()) == 10
    # One message always passes.
    query.end()
    tight = Query(live.address, "bytes", maxBytesPerTrigger="10")
    assert len(tight.trigger()) == 1
    tight.end()


def test_a_batch_waits_for_enough_messages(live: LiveNode) -> None:
    live.fill("few", numbered(2))
    query = Query(live.address, "few", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert len(query.trigger()) == 2
    live.publish("few", numbered(4))
    assert query.trigger() == []
    # What is committed leaves the queue, all the same.
    assert live.stat("few").messages == 4
    live.publish("few", numbered(1))
    assert len(query.trigger()) == 5
    live.publish("few", numbered(1))
    assert query.trigger() == []
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.trigger()) == 1
    query.end()


def test_a_batch_waits_no_longer_than_its_time(live: LiveNode) -> None:
    live.fill("late", numbered(1))
    query = Query(live.address, "late", minOffsetsPerTrigger="5", maxTriggerDelay="300ms")
    assert len(query.trigger()) == 1
    live.publish("late", numbered(1))
    wait_until(lambda: len(query.trigger()) == 1)
    query.end()


def test_a_limit_is_shared_by_backlog(live: LiveNode) -> None:
    live.fill("share a", numbered(80))
    live.fill("share b", numbered(20))
    query = Query(live.address, "", queues="share a,share b", maxMessagesPerTrigger="10")
    queues = [row["queue"] for row in query.trigger()]
    assert (queues.count("share a"), queues.count("share b")) == (7, 2)
    query.end()


def test_queues_take_turns_where_a_limit_is_below_their_number(live: LiveNode) -> None:
    """The last ones by name got nothing while the first had a backlog."""
    for queue in ("turn x", "turn y", "turn z"):
        live.fill(queue, numbered(50))
    query = Query(live.address, "", queuePattern="turn [xyz]", maxMessagesPerTrigger="2")
    read = [[row["queue"][-1] for row in query.trigger()] for _ in range(3)]
    assert read == [["x", "y"], ["x", "z"], ["y", "z"]]
    query.end()


def test_once_reads_all_that_is_there(live: LiveNode) -> None:
    live.fill("once", numbered(30))
    query = Query(live.address, "once", maxMessagesPerTrigger="4")
    assert len(query.trigger(ReadAllAvailable())) == 30
    query.end()


def test_available_now_ends_where_the_queue_ended_when_it_began(live: LiveNode) -> None:
    live.fill("available", numbered(5))
    query = Query(live.address, "available", maxMessagesPerTrigger="3")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.trigger()) == 3
    live.publish("available", numbered(5, 5))
    assert [row["body"] for row in query.trigger()] == numbered(2, 3)
    assert query.trigger() == []
    assert live.stat("available").messages == 5
    assert query.reader.reportLatestOffset()["queues"]["available"]["position"] == 10  # type: ignore[index]
    query.end()


def test_a_queue_that_appears_is_read_from_its_beginning(live: LiveNode) -> None:
    live.fill("growing 1", numbered(2))
    query = Query(live.address, "", queuePattern="growing .*")
    assert len(query.trigger()) == 2
    live.fill("growing 2", numbered(3))
    assert [row["queue"] for row in query.trigger()] == ["growing 2"] * 3
    assert query.trigger() == []
    assert live.stat("growing 2").messages == 0
    query.end()


def test_available_now_takes_a_queue_that_was_added_to_its_options(live: LiveNode) -> None:
    """And leaves out one that is declared while it runs."""
    live.fill("added 1", numbered(2))
    query = Query(live.address, "added 1")
    query.trigger()
    query.end()
    live.fill("added 2", numbered(3))
    again = Query(live.address, "", queuePattern="added .*")
    again.at = query.at
    again.reader.prepareForTriggerAvailableNow()
    live.fill("added 3", numbered(1))
    assert [row["queue"] for row in again.trigger()] == ["added 2"] * 3
    assert again.trigger() == []
    assert [live.stat(f"added {number}").messages for number in (1, 2, 3)] == [0, 0, 1]
    again.end()


def test_a_queue_that_appears_without_its_beginning_is_refused_before_a_batch_is_planned(
    live: LiveNode,
) -> None:
    """A batch that is planned has its range for ever."""
    live.fill("whole", numbered(2))
    query = Query(live.address, "whole")
    query.trigger()
    live.fill("headless", numbered(5))
    first = Query(live.address, "headless")
    first.trigger()
    assert first.trigger() == []
    first.end()
    live.publish("headless", numbered(1))
    again = Query(live.address, "", queues="whole,headless", leaseHolder="again", lease="two")
    again.at = query.at
    limit = again.reader.getDefaultReadLimit()
    assert query.at is not None
    with pytest.raises(DataLossError, match="'headless': positions 0 to 4"):
        again.reader.latestOffset(query.at, limit)
    skips = Query(live.address, "", queues="whole,headless", lease="three", failOnDataLoss="false")
    skips.at = query.at
    assert [(row["queue"], row["position"]) for row in skips.trigger()] == [("headless", 5)]
    for each in (query, again, skips):
        each.end()


# --- leases ---


def test_a_second_query_of_a_queue_is_refused_with_the_holders_name(live: LiveNode) -> None:
    live.fill("leased", numbered(3))
    first = Query(live.address, "leased", leaseHolder="the night shift")
    first.begin()
    with pytest.raises(SourceLeasedError, match="queue 'leased' is leased by 'the night shift'"):
        Query(live.address, "leased").begin()
    first.end()
    second = Query(live.address, "leased")
    assert len(second.trigger()) == 3
    second.end()


def test_a_lease_whose_holder_is_gone_is_taken_over(live: LiveNode) -> None:
    live.fill("orphan", numbered(3))
    gone = Query(live.address, "orphan", leaseTtl="300ms")
    gone.trigger()
    at = gone.at
    assert at is not None
    # As after a SIGKILL: nobody renews it, and nobody releases it.
    gone.reader._driver.leases._ended.set()

    def taken_over() -> bool:
        try:
            heir.begin()
        except SourceLeasedError:
            return False
        return True

    heir = Query(live.address, "orphan")
    wait_until(taken_over, 10)
    with pytest.raises(SourceLeasedError, match="has to end"):
        gone.trigger()
    assert live.stat("orphan").messages == 3
    heir.end()


def test_a_query_keeps_its_lease_beyond_its_time(live: LiveNode) -> None:
    live.fill("kept", numbered(3))
    query = Query(live.address, "kept", leaseTtl="300ms")
    query.begin()
    [lease] = live.stat("kept").leases
    wait_until(lambda: live.stat("kept").leases[0].until_ms > lease.until_ms + 600, 10)
    assert live.stat("kept").leases[0].token == lease.token
    query.end()


def test_a_restarted_batch_is_not_read_under_somebody_elses_lease(live: LiveNode) -> None:
    live.fill("restart", numbered(3))
    query = Query(live.address, "restart", leaseHolder="me")
    query.begin()
    other = Query(live.address, "restart")
    assert query.at is not None
    end = query.reader.latestOffset(query.at, ReadAllAvailable())
    with pytest.raises(SourceLeasedError, match="leased by 'me'"):
        other.reader.partitions(query.at, end)
    query.end()


# --- losses ---


def test_a_checkpoint_from_the_past_is_refused_with_the_range(live: LiveNode) -> None:
    live.fill("past", numbered(10))
    query = Query(live.address, "past", maxMessagesPerTrigger="5")
    query.begin()
    old = query.at
    while query.trigger():
        pass
    query.at = old
    with pytest.raises(DataLossError, match=r"positions 0 to 9 can't be read.*checkpoint is older"):
        query.trigger()
    query.end()


def test_a_purge_is_refused_with_the_range_or_skipped(live: LiveNode) -> None:
    live.fill("purge", numbered(10))
    strict = Query(live.address, "purge", maxMessagesPerTrigger="4")
    strict.trigger()
    live.client.purge_queue("purge")
    live.publish("purge", [b"later"])
    with pytest.raises(
        DataLossError, match=r"positions 4 to 9 can't be read.*the queue was purged"
    ):
        strict.trigger()
    strict.end()
    lax = Query(live.address, "purge", failOnDataLoss="false")
    lax.at = strict.at
    assert [row["body"] for row in lax.trigger()] == [b"later"]
    assert lax.trigger() == []
    assert live.stat("purge").messages == 0
    lax.end()


def test_a_queue_that_was_declared_anew_is_refused_or_read_from_its_beginning(
    live: LiveNode,
) -> None:
    live.fill("again", numbered(10))
    strict = Query(live.address, "again")
    strict.trigger()
    live.client.delete_queue("again")
    live.fill("again", [b"new"] * 12)
    with pytest.raises(DataLossError, match=r"positions from 10 on.*declared anew"):
        strict.trigger()
    lax = Query(live.address, "again", failOnDataLoss="false")
    lax.at = strict.at
    # The first batch goes over to the new queue, and has no rows.
    assert lax.trigger() == []
    assert [row["body"] for row in lax.trigger()] == [b"new"] * 12
    assert lax.trigger() == []
    assert live.stat("again").messages == 0
    lax.end()


def test_a_running_query_goes_over_to_a_queue_that_was_declared_anew(live: LiveNode) -> None:
    """Its lease was the other queue's."""
    live.fill("running", numbered(10))
    query = Query(live.address, "running", failOnDataLoss="false")
    assert len(query.trigger()) == 10
    live.client.delete_queue("running")
    live.fill("running", [b"new"] * 3)
    assert query.trigger() == []
    assert [row["body"] for row in query.trigger()] == [b"new"] * 3
    assert query.trigger() == []
    assert live.stat("running").messages == 0
    query.end()
    assert live.stat("running").leases == ()


def test_a_renewal_takes_a_queue_that_was_declared_anew_for_no_lost_lease(live: LiveNode) -> None:
    """No other query has it. What the query can't read any more is said by its next trigger."""
    live.fill("renewed", numbered(10))
    live.fill("beside", numbered(1))
    query = Query(live.address, "", queues="beside,renewed", leaseTtl="300ms")
    query.trigger()
    live.client.delete_queue("renewed")
    live.fill("renewed", [b"new"])
    leases = query.reader._driver.leases
    wait_until(lambda: "renewed" not in leases._held or leases._lost is not None, 5)
    with pytest.raises(DataLossError, match=r"positions from 10 on.*declared anew"):
        query.trigger()
    # The other queue's lease goes on.
    [lease] = live.stat("beside").leases
    wait_until(lambda: live.stat("beside").leases[0].until_ms > lease.until_ms, 5)
    query.end()


def test_a_deleted_queue_is_refused(live: LiveNode) -> None:
    live.fill("deleted", numbered(3))
    query = Query(live.address, "deleted")
    query.trigger()
    live.client.delete_queue("deleted")
    with pytest.raises(DataLossError, match="the queue has been deleted"):
        query.trigger()
    query.end()


# --- queues that are taken out of the options ---


@pytest.mark.parametrize("options", [{"queues": "out b"}, {"queuePattern": ".*t b"}])
def test_a_queue_that_the_options_name_no_more_is_left_as_it_is(
    live: LiveNode, options: dict[str, str]
) -> None:
    """Neither read nor acknowledged nor leased, and no loss if it goes. Named again, it goes on."""
    live.fill("out a", numbered(3))
    live.fill("out b", numbered(3))
    both = Query(live.address, "", queues="out a,out b")
    assert len(both.trigger()) == 6
    assert both.trigger() == []
    both.end()
    live.publish("out a", [b"later"])
    live.publish("out b", [b"later"])
    alone = Query(live.address, "", **options)
    alone.at = both.at
    assert [row["queue"] for row in alone.trigger()] == ["out b"]
    assert alone.trigger() == []
    assert (live.stat("out a").messages, live.stat("out a").leases) == (1, ())
    assert live.stat("out b").messages == 0
    alone.end()
    assert alone.at is not None
    ended = parse(options_for(live.address, "", leaseHolder="ends it", **options))
    assert end_query(ended, from_json(alone.at)).keys() == {"out b"}
    again = Query(live.address, "", queues="out a,out b")
    again.at = alone.at
    assert [(row["queue"], row["body"]) for row in again.trigger()] == [("out a", b"later")]
    again.end()
    live.client.delete_queue("out a")
    gone = Query(live.address, "", **options)
    gone.at = again.at
    assert gone.trigger() == []
    gone.end()
    live.client.delete_queue("out b")


def test_a_batch_that_was_planned_is_read_again_also_of_a_queue_that_is_taken_out(
    live: LiveNode,
) -> None:
    """Its offset says that it is read. When it is committed, the query has done with the queue."""
    live.fill("planned a", numbered(3))
    live.fill("planned b", numbered(3))
    both = Query(live.address, "", queues="planned a,planned b", leaseHolder="me")
    both.begin()
    start = both.at
    assert start is not None
    end = both.reader.latestOffset(start, ReadAllAvailable())
    alone = Query(live.address, "planned b", leaseHolder="me")
    assert len(rows_of(alone.reader, alone.reader.partitions(start, end))) == 6
    alone.at = end
    live.publish("planned a", [b"later"])
    assert alone.trigger() == []
    assert live.bodies("planned a") == [b"later"]
    assert live.stat("planned a").leases == ()
    alone.end()
    both.end()
