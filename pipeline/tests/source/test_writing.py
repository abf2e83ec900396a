"""The sink's work in one task: rows to messages, and what an attempt after a failed one does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow
import pytest
from live_node import LiveNode
from pipeline.tests.source.sources import options_for
from pyspark.sql import types

import ringmq
from pyspark_ringmq import DefaultSource, sending
from pyspark_ringmq.batch import BatchReader
from pyspark_ringmq.sending import Unconfirmed
from pyspark_ringmq.writing import producer_id, publish, publish_task
from ringmq_node.queue.gaps import PRODUCER_GAPS_MAX
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.options import parse as source_options
from ringmq_pipeline.sink_options import check_columns, parse


def options_of(live: LiveNode, **options: str) -> dict[str, str]:
    return {"endpoints": live.address, "requestTimeout": "10s"} | options


def rows(bodies: list[bytes], **columns: Sequence[object]) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict({"body": bodies, **columns})


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_rows_become_messages_with_their_properties(live: LiveNode) -> None:
    live.client.declare_queue("written")
    batch = rows(
        [b"one", b"two"],
        message_id=["m", None],
        published_at=[datetime(2026, 11, 23, tzinfo=UTC), None],
        headers=pyarrow.array(
            [[("a", "1")], None], pyarrow.map_(pyarrow.string(), pyarrow.string())
        ),
        persistent=[True, False],
        position=[7, 8],
    )
    done = publish(parse(options_of(live, queue="written")), b"rows", iter([batch]))
    assert (done.messages, done.bytes >= 6) == (2, True)
    [found] = live.client.reader("written").browse(0)
    first, second = found.messages
    assert (first.body, first.properties.message_id) == (b"one", "m")
    assert first.properties.timestamp_ms == 1_795_392_000_000
    assert first.properties.headers == {"a": "1"}
    assert (second.body, second.properties.message_id) == (b"two", "")
    assert found.persistent == [True, False]


@pytest.mark.parametrize("encoding", ["proto", "arrow"])
def test_what_was_read_with_all_properties_is_written_with_them(
    live: LiveNode, encoding: str
) -> None:
    """A replay brought messages back without their priority, time to live and type, and with each
    header as a text."""
    given, again = f"all of them, {encoding}", f"again, {encoding}"
    whole = ringmq.Properties(
        message_id="m", type="t", app_id="a", headers={"number": 1, "flag": True}
    )
    live.client.declare_queue(given)
    live.client.declare_queue(again)
    with live.client.publisher(given) as publisher:
        publisher.publish_batch([b"plain"])
        publisher.publish_batch([b"1", b"2"], whole, priority=7, ttl_ms=3_600_000)
        publisher.publish_batch([b"3"], ringmq.Properties(message_id="n"), priority=2)
    reader = BatchReader(
        source_options(
            options_for(live.address, given, encoding=encoding, includeProperties="true")
        )
    )
    [partition] = reader.partitions()
    # A column of its own is not what the encoded ones say.
    batches = [
        batch.set_column(
            batch.schema.get_field_index("message_id"), "message_id", pyarrow.array(["x"] * 4)
        )
        for batch in reader.read(partition)
    ]
    publish(parse(options_of(live, queue=again)), encoding.encode(), iter(batches))
    first, second = (
        [
            (each.body, replace(each.properties, routing_key=""))
            for batch in live.client.reader(queue).browse(0)
            for each in batch.messages
        ]
        for queue in (given, again)
    )
    assert [body for body, _ in second] == [b"plain", b"1", b"2", b"3"]
    assert second[1][1] == replace(whole, priority=7, expiration_ms=3_600_000)
    assert second[1:] == first[1:]


def test_bytes_that_are_no_properties_are_refused(live: LiveNode) -> None:
    live.client.declare_queue("no properties")
    batch = rows([b"one"], encoded_properties=[b"\xff"])
    with pytest.raises(ValueError, match=r"no ringmq\.v1\.Properties"):
        publish(parse(options_of(live, queue="no properties")), b"bad", iter([batch]))
    assert live.bodies("no properties") == []


def test_a_column_names_each_rows_queue(live: LiveNode) -> None:
    for queue in ("to a", "to b"):
        live.client.declare_queue(queue)
    batch = rows(numbered(5), queue=["to a", "to b", "to b", "to a", "to a"])
    publish(parse(options_of(live)), b"column", iter([batch]))
    assert (live.bodies("to a"), live.bodies("to b")) == ([b"0", b"3", b"4"], [b"1", b"2"])


def test_columns_are_found_in_any_case(live: LiveNode) -> None:
    """Spark doesn't tell it apart: `MESSAGE_ID` and `Persistent` were left out in silence."""
    live.client.declare_queue("any case")
    batch = pyarrow.RecordBatch.from_pydict(
        {"Body": [b"x"], "QUEUE": ["any case"], "MESSAGE_ID": ["m"], "Persistent": [False]}
        | {"Part": ["a"], "Headers": ["none"], "headers": [None]}
    )
    options = parse(options_of(live, producerColumn="PART"))
    check_columns(options, batch.schema.names)
    publish_task(options, "any case", 0, iter([batch]))
    [found] = live.client.reader("any case").browse(0)
    [message] = found.messages
    assert (message.body, message.properties.message_id) == (b"x", "m")
    assert (found.persistent, message.properties.headers) == ([False], {})
    with pytest.raises(OptionError, match="several columns have this name"):
        check_columns(options, [*batch.schema.names, "BODY"])


def test_an_attempt_after_a_failed_one_adds_nothing_twice(live: LiveNode) -> None:
    live.client.declare_queue("attempts")
    options = parse(options_of(live, queue="attempts", confirmWindow="100"))
    task = producer_id("job", 3)

    def fails() -> Iterator[pyarrow.RecordBatch]:
        yield rows(numbered(700))
        yield rows(numbered(50, 700))
        raise RuntimeError("the executor is gone")

    with pytest.raises(RuntimeError, match="the executor is gone"):
        publish(options, task, fails())
    # The last ones were still on their way.
    assert 700 <= live.stat("attempts").messages <= 750
    again = iter([rows(numbered(300)), rows(numbered(700, 300))])
    assert publish(options, task, again).messages == 1000
    assert live.bodies("attempts") == numbered(1000)
    # Another task, or another job, is another producer.
    assert publish(options, producer_id("job", 4), iter([rows(numbered(2))])).messages == 2
    assert live.stat("attempts").messages == 1002


def test_a_task_may_be_several_producers_one_after_the_other(live: LiveNode) -> None:
    live.client.declare_queue("parts")
    options = parse(options_of(live, queue="parts", producerColumn="part"))

    def batches(last: int) -> Iterator[pyarrow.RecordBatch]:
        """The parts a, b and c with 30 rows each, in batches that end within them."""
        names: list[object] = [*"abc"]
        names = [name for name in names for _ in range(30)]
        for first in range(0, last, 20):
            end = min(first + 20, last)
            yield rows(numbered(end - first, first), part=names[first:end])

    assert publish_task(options, "job", 0, batches(50)).messages == 50
    assert publish_task(options, "job", 0, batches(90)).messages == 90
    assert live.bodies("parts") == numbered(90)
    # Each one is the producer of a task that has these rows alone.
    alone = iter([rows(numbered(30, 30))])
    plain = parse(options_of(live, queue="parts"))
    publish(plain, producer_id("job/b", 0), alone)
    assert live.stat("parts").messages == 90


@pytest.mark.parametrize("names", [["a", "b", "a"], ["a", None, "b"]])
def test_rows_of_a_producer_that_do_not_come_together_are_refused(
    live: LiveNode, names: list[object]
) -> None:
    """The second lot would have the numbers of the first, and be trimmed."""
    live.client.declare_queue("apart")
    options = parse(options_of(live, queue="apart", producerColumn="part"))
    with pytest.raises(ValueError, match="don't come together"):
        publish_task(options, "job", 0, iter([rows(numbered(3), part=names)]))


def test_rows_that_alternate_between_queues_can_be_published_again(live: LiveNode) -> None:
    """With one count for all queues, each queue had a gap before every row. It keeps 4096 of them:
    it couldn't tell any more what it had of the rows before, and every further attempt failed."""
    live.client.declare_queue("turn a")
    live.client.declare_queue("turn b")
    options = parse(options_of(live))
    count = 10_000
    batch = rows(numbered(count), queue=[f"turn {'ab'[row % 2]}" for row in range(count)])
    for _ in range(2):
        assert publish(options, b"in turn", iter([batch])).messages == count
    assert live.bodies("turn a") == numbered(count)[::2]
    assert live.bodies("turn b") == numbered(count)[1::2]


def test_a_task_goes_on_where_it_was_in_more_queues_than_it_has_streams(
    live: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ringmq.sending.STREAMS_MAX", 2)
    queues: list[object] = [f"many {number}" for number in range(5)]
    for queue in queues:
        live.client.declare_queue(str(queue))
    options = parse(options_of(live))
    batches = [rows(numbered(5, first), queue=queues) for first in (0, 5, 10)]
    for upto in (2, 3):
        publish(options, b"many queues", iter(batches[:upto]))
    for number, queue in enumerate(queues):
        assert live.bodies(str(queue)) == [b"%d" % row for row in (number, number + 5, number + 10)]


def test_rows_that_say_their_sequence_are_not_lost_where_others_leave_the_source(
    live: LiveNode,
) -> None:
    """Counted, the rows behind those that have left move up to numbers that are published."""
    live.fill("leaves", numbered(10))
    live.client.declare_queue("arrives")
    reader = BatchReader(source_options(options_for(live.address, "leaves")))
    [partition] = reader.partitions()
    # So small a window that the attempt dies with its rows confirmed.
    sink = parse(options_of(live, queue="arrives", sequenceColumn="Position", confirmWindow="1"))

    def dies() -> Iterator[pyarrow.RecordBatch]:
        for batch in reader.read(partition):
            yield batch.slice(0, 6)
            raise RuntimeError("the executor is gone")

    with pytest.raises(RuntimeError, match="the executor is gone"):
        publish(sink, b"from queue to queue", dies())
    assert live.bodies("arrives") == numbered(6)
    with live.client.consumer("leaves", prefetch=2) as consumer:
        taken = consumer.next_batch(20)
        assert taken is not None
        consumer.ack(taken, wait=True)
    publish(sink, b"from queue to queue", reader.read(partition))
    assert live.bodies("arrives") == numbered(10)


def test_sequences_of_rows_have_to_rise(live: LiveNode) -> None:
    live.client.declare_queue("rises")
    given = options_of(live, queue="rises", sequenceColumn="n")

    def write(numbers: list[object], producer: bytes, **further: str) -> None:
        sources: list[object] = ["a", "a", "b", "b"]
        batch = rows(numbered(len(numbers)), n=numbers, source=sources[: len(numbers)])
        publish_task(parse(given | further), producer.decode(), 0, iter([batch]))

    write([0, 1, 5, 9], b"gaps")
    with pytest.raises(ValueError, match="a row has 4 in the column 'n', behind one with 4"):
        write([4, 4], b"twice")
    with pytest.raises(ValueError, match="has None in the column 'n'"):
        write([4, None], b"null")
    with pytest.raises(ValueError, match="has -1 in the column 'n'"):
        write([-1], b"negative")
    # Each source's positions are its own.
    with pytest.raises(ValueError, match="behind one with 8"):
        write([7, 8, 0, 1], b"sources")
    write([7, 8, 0, 1], b"sources", producerColumn="source")


def test_more_gaps_than_a_queue_keeps_are_refused_before_they_are_made(
    live: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat would be refused for ever."""
    assert sending.GAPS_MAX == PRODUCER_GAPS_MAX
    monkeypatch.setattr(sending, "GAPS_MAX", 3)
    live.client.declare_queue("gaps")
    sink = parse(options_of(live, queue="gaps", sequenceColumn="n"))
    publish(sink, b"few", iter([rows(numbered(4), n=[0, 2, 4, 6])]))
    many = rows(numbered(5), n=[1, 3, 5, 7, 9])
    for _ in range(2):
        with pytest.raises(ValueError, match="'n' has more than 3 gaps in the rows of a task"):
            publish(sink, b"many", iter([many]))


def test_a_refused_message_moves_no_other_to_its_number(live: LiveNode) -> None:
    """Were the rows behind it numbered anew, the next attempt would take one for another."""
    live.client.declare_queue(
        "full", rules=ringmq.QueueRules(max_length=2, overflow=ringmq.Overflow.REJECT_PUBLISH)
    )
    options = parse(options_of(live, queue="full"))
    task = producer_id("full", 0)
    with pytest.raises(ringmq.QueueFullError):
        publish(options, task, iter([rows(numbered(5))]))
    found = live.bodies("full")
    live.client.purge_queue("full")
    with pytest.raises(ringmq.QueueFullError):
        publish(options, task, iter([rows(numbered(5))]))
    found += live.bodies("full")
    assert len(found) == len(set(found)) >= 3


def test_a_queue_that_is_not_there_is_an_error(live: LiveNode) -> None:
    options = parse(options_of(live, queue="not there"))
    with pytest.raises(ringmq.UnroutableError):
        publish(options, b"unroutable", iter([rows([b"x"])]))


def test_the_rate_is_kept(live: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    # In that module alone: other threads of this process sleep, too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)
    monkeypatch.setattr("pyspark_ringmq.writing.time", clock)
    live.client.declare_queue("paced")
    options = parse(options_of(live, queue="paced", maxRatePerTask="1000"))
    publish(options, b"paced", iter([rows(numbered(1000))]))
    # Ten steps of 100; the waits that the clock doesn't show add up.
    assert len(slept) == 10
    assert sum(slept) > 1
    assert live.bodies("paced") == numbered(1000)


def test_what_cannot_be_published_is_said_first(live: LiveNode) -> None:
    with pytest.raises(OptionError, match="column `body`"):
        check_columns(parse(options_of(live, queue="q")), ["value"])
    with pytest.raises(OptionError, match="name the queue"):
        check_columns(parse(options_of(live)), ["body"])
    with pytest.raises(OptionError, match="no such column"):
        check_columns(parse(options_of(live, queue="q", producerColumn="part")), ["body"])
    with pytest.raises(OptionError, match="did you mean 'producerId'"):
        parse(options_of(live, producerid_="x"))
    with pytest.raises(ValueError, match="has no body"):
        publish(parse(options_of(live, queue="q")), b"n", iter([rows([b"x", None])]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (
            {"BODY": types.LongType()},
            "'BODY': the column is of the type bigint, .* binary or string",
        ),
        ({"queue": types.IntegerType()}, "'queue': .* int, .* string"),
        ({"persistent": types.StringType()}, "'persistent': .* string, .* boolean"),
        ({"message_id": types.LongType()}, "'message_id': .* bigint"),
        ({"published_at": types.LongType()}, "'published_at': .* bigint"),
        ({"headers": types.StringType()}, "'headers': .* string"),
        ({"encoded_properties": types.StringType()}, "'encoded_properties': .* string"),
        ({"part": types.LongType()}, "'part': .* bigint"),
        ({"position": types.StringType()}, "'position': .* string, .* bigint"),
    ],
)
def test_a_column_of_a_wrong_type_is_named_before_anything_is_published(
    columns: dict[str, types.DataType], named: str
) -> None:
    """It was an error of a task, and its words were pyarrow's."""
    right: dict[str, types.DataType] = {
        "queue": types.StringType("UTF8_LCASE"),
        "body": types.StringType(),
        "persistent": types.BooleanType(),
        "message_id": types.NullType(),
        "published_at": types.TimestampType(),
        "headers": types.MapType(types.StringType(), types.LongType()),
        "part": types.StringType(),
        "position": types.IntegerType(),
        "other": types.LongType(),
    }
    source = DefaultSource(
        {"endpoints": "127.0.0.1:1", "producerColumn": "part"} | {"sequenceColumn": "Position"}
    )
    source.writer(struct_of(right), overwrite=False)
    others = {name: kind for name, kind in right.items() if name not in map(str.lower, columns)}
    with pytest.raises(OptionError, match=named):
        source.streamWriter(struct_of(others | columns), overwrite=False)
    if "queue" in columns:
        # The option says where rows go.
        there = DefaultSource({"endpoints": "127.0.0.1:1", "queue": "q"})
        there.writer(struct_of(others | columns), overwrite=False)


def struct_of(columns: dict[str, types.DataType]) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def test_a_window_of_calls_is_left_unconfirmed_and_no_more() -> None:
    """Where each call was waited for, the first `add` would never return."""
    first, second, third = Future[None](), Future[None](), Future[None]()
    unconfirmed = Unconfirmed(messages_max=10, bytes_max=100)
    unconfirmed.add(first, 10, 10)
    first.set_result(None)
    unconfirmed.add(second, 5, 10)
    # Bytes count, too.
    second.set_exception(ringmq.UnroutableError("no queue"))
    with pytest.raises(ringmq.UnroutableError):
        unconfirmed.add(third, 1, 91)
    third.set_exception(ringmq.UnroutableError("nor here"))
    with pytest.raises(ringmq.UnroutableError, match="nor here"):
        unconfirmed.wait_all()
