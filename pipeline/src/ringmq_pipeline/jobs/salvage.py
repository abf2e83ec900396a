"""From the store of a node that is lost to the queues of a cluster.

Rows go out in the order of the store, queue by queue, as those of one producer: the broker trims
whatever an earlier attempt on the same store has published. A producer is one for what the store
has, and not for where it lies: by the numbers of another one's rows, new ones would be trimmed.

A store names a queue as a node does inside, together with its vhost; a publish is in one vhost. So
what goes back to its own queue goes vhost by vhost, each with a producer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ringmq_pipeline.schema import ENCODED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_VHOST: Final = "/"
COLUMNS: Final = (
    "queue",
    "vhost",
    "body",
    "persistent",
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "published_at",
    "headers",
    ENCODED.name,
)


def fingerprint(pieces: DataFrame) -> str:
    """Of the messages and findings of a store: another one for other rows."""
    piece = f.xxhash64("queue_id", "queue", "status", "first", "last", "rows", "body_bytes")
    row = pieces.agg(f.count("*").alias("count"), f.bit_xor(piece).alias("together")).collect()[0]
    return f"{row['count']}/{row['together']}"


def salvageable(messages: DataFrame) -> DataFrame:
    """The messages whose bodies are whole, with the columns that the sink takes."""
    return messages.where("status = 'ok'").select(*COLUMNS)


def publish(
    rows: DataFrame, endpoints: str, queue: str, producer: str, vhost: str = DEFAULT_VHOST
) -> None:
    """Returns when all are confirmed. `queue`: where all go, in `vhost`; empty: to the queues that
    they were in."""
    if queue:
        _publish(rows.withColumn("queue", f.lit(queue)), endpoints, vhost, producer)
        return
    for each in sorted(row["vhost"] for row in rows.select("vhost").distinct().collect()):
        of_it = rows.where(rows["vhost"] == each)
        if each == DEFAULT_VHOST:
            _publish(of_it, endpoints, each, producer)
        else:
            name = f.expr("substring(queue, length(vhost) + 2)")
            _publish(of_it.withColumn("queue", name), endpoints, each, f"{producer}/{each}")


def _publish(rows: DataFrame, endpoints: str, vhost: str, producer: str) -> None:
    sink = rows.write.format("ringmq").mode("append")
    sink.options(endpoints=endpoints, vhost=vhost, producerId=producer).save()
