"""The sink under Spark: tasks that are run again, and batches that are written again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_node import LiveNode
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from sparks import evidence

import ringmq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 2000


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@evidence
def test_a_task_that_is_run_again_publishes_each_row_once(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """The first attempt of one task dies with some of its rows confirmed."""
    live.client.declare_queue("sink tasks")
    spent = str(tmp_path / "spent")

    def fail_once(number: int) -> bytes:
        if number == COUNT - 10:
            try:
                Path(spent).touch(exist_ok=False)
            except FileExistsError:
                return b"%d" % number
            raise RuntimeError("the first attempt dies here")
        return b"%d" % number

    body = udf(lambda number: fail_once(number), "binary")
    rows = spark.range(0, COUNT, 1, 2).select(body("id").alias("body"))
    # Small batches, so that earlier ones are published when the task dies.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    rows.write.format("ringmq").mode("append").options(
        endpoints=live.address, queue="sink tasks"
    ).save()
    assert Path(spent).exists()
    assert sorted(live.bodies("sink tasks"), key=int) == numbered(COUNT)


@evidence
def test_a_query_from_queue_to_queue_loses_no_row_though_others_leave(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """The first attempt dies with some rows confirmed, and a consumer takes two messages."""
    live.fill("left to others", numbered(COUNT))
    live.client.declare_queue("arriving")
    spent, address = str(tmp_path / "spent"), live.address

    def fail_once(position: int, body: bytes) -> bytes:
        if position != COUNT - 10 or Path(spent).exists():
            return body
        Path(spent).touch()
        with ringmq.connect_sync(address) as client:
            deadline = time.monotonic() + 30
            while client.reader("arriving").stat().messages < 100:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            with client.consumer("left to others", prefetch=2) as consumer:
                taken = consumer.next_batch(20)
                assert taken is not None
                consumer.ack(taken, wait=True)
        raise RuntimeError("the first attempt dies here")

    checked = udf(lambda position, body: fail_once(position, body), "binary")
    rows = spark.read.format("ringmq").options(endpoints=address, queue="left to others").load()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    rows.select("position", checked("position", "body").alias("body")).write.format("ringmq").mode(
        "append"
    ).options(endpoints=address, queue="arriving", sequenceColumn="position").save()
    assert Path(spent).exists()
    assert live.bodies("arriving") == numbered(COUNT)


def test_a_queue_is_never_overwritten(spark: SparkSession, live: LiveNode) -> None:
    rows = spark.createDataFrame([(b"x",)], "body BINARY")
    with pytest.raises(PySparkException, match="write with mode 'append'"):
        rows.write.format("ringmq").mode("overwrite").options(
            endpoints=live.address, queue="sink tasks"
        ).save()


@evidence
def test_a_batch_that_a_restarted_stream_writes_again_is_there_once(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """As after a death between the sink's confirms and Spark's note that the batch is done."""
    live.fill("sink from", numbered(300))
    live.client.declare_queue("sink to")
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        query = (
            spark.readStream.format("ringmq")
            .options(endpoints=live.address, queue="sink from", maxMessagesPerTrigger="150")
            .options(ackMode="never")
            .load()
            .writeStream.format("ringmq")
            .options(endpoints=live.address, queue="sink to")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    run()
    assert live.bodies("sink to") == numbered(300)
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    run()
    assert newest.exists()
    assert live.bodies("sink to") == numbered(300)
