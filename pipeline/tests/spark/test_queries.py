"""The source under Spark itself: found by its name, read as table and as stream."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live_node import LiveNode, wait_until
from pyspark.errors import PySparkException

from ringmq_pipeline.offsets import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def batch(spark: SparkSession, live: LiveNode, queue: str, **options: str) -> DataFrame:
    return (
        spark.read.format("ringmq")
        .options(endpoints=live.address, queue=queue, requestTimeout="10s", **options)
        .load()
    )


def test_a_queue_is_a_table(spark: SparkSession, live: LiveNode) -> None:
    live.fill("spark table", numbered(100))
    table = batch(spark, live, "spark table", minPartitions="2")
    rows = table.where("position % 2 = 0").orderBy("position").select("body").collect()
    assert [bytes(row.body) for row in rows] == numbered(100)[::2]


def test_an_error_of_the_source_reaches_its_user(spark: SparkSession, live: LiveNode) -> None:
    with pytest.raises(PySparkException, match="did you mean 'minPartitions'"):
        batch(spark, live, "any", minPartition="3").collect()
    with pytest.raises(PySparkException, match="there is no queue 'nobody declared it'"):
        batch(spark, live, "nobody declared it").collect()


def test_a_stream_drains_its_queue_and_every_start_is_committed(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """Guard: messages leave the queue before a `start` that Spark gives to `latestOffset`. Were
    that ever not the end of a committed batch, messages would be lost.

    It is seen from outside: while a batch is being processed, and its commit isn't written, what
    has left the queue is no more than what the commit log covers."""
    live.fill("spark stream", numbered(50))
    checkpoint = tmp_path / "checkpoint"
    seen: list[bytes] = []

    def committed_end() -> int:
        done = [int(file.name) for file in checkpoint.glob("commits/[0-9]*")]
        if not done:
            return 0
        offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
        return from_json(offsets)["spark stream"].position

    def process(rows: DataFrame, batch_id: int) -> None:
        assert live.stat("spark stream").acked_end <= committed_end()
        seen.extend(bytes(row.body) for row in rows.collect())

    def run() -> list[dict[str, Any]]:
        query = (
            spark.readStream.format("ringmq")
            .options(endpoints=live.address, queue="spark stream", maxMessagesPerTrigger="20")
            .option("leaseHolder", "one after the other")
            .load()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert query.exception() is None
        return [dict(each) for each in query.recentProgress]

    progress = run()
    assert seen == numbered(50)
    assert live.stat("spark stream").messages == 0
    assert len(progress) == 3
    # A query that goes on has only what is new.
    live.publish("spark stream", [b"new"])
    run()
    assert seen[50:] == [b"new"]
    assert live.stat("spark stream").messages == 0


@pytest.mark.logs("the sink is down")
def test_a_stream_from_the_latest_position_starts_while_its_queue_is_published_to(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """Also when its first batch has failed."""
    live.fill("spark latest", numbered(10))
    ended = threading.Event()
    seen: list[int] = []
    lives: list[int] = []

    def publish() -> None:
        with live.client.publisher("spark latest") as publisher:
            while not ended.wait(0.005):
                publisher.publish(b"new")

    def process(rows: DataFrame, batch_id: int) -> None:
        if not lives:
            lives.append(batch_id)
            raise RuntimeError("the sink is down")
        seen.extend(row.position for row in rows.orderBy("position").collect())

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("ringmq")
            .options(endpoints=live.address, queue="spark latest", requestTimeout="10s")
            .options(startingOffsets="latest", ackMode="never")
            .load()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        with pytest.raises(PySparkException, match="the sink is down"):
            start().awaitTermination(60)
        query = start()
        wait_until(lambda: len(seen) >= 20 or not query.isActive)
        assert query.exception() is None
        query.stop()
    finally:
        ended.set()
        publishing.join()
    assert lives == [0]
    assert seen[0] >= 10
    assert seen == [*range(seen[0], seen[0] + len(seen))]
