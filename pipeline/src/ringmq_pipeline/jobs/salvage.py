"""From the store of a node that is lost to the queues of a cluster.

Rows go out in the order of the store, queue by queue, as those of one producer: the broker trims
whatever an earlier attempt on the same store has published. A producer is one for what the store
has, and not for where it lies: by the numbers of another one's rows, new ones would be trimmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = (
    "queue",
    "body",
    "persistent",
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "published_at",
    "headers",
)


def fingerprint(pieces: DataFrame) -> str:
    """Of the messages and findings of a store: another one for other rows."""
    piece = f.xxhash64("queue_id", "queue", "status", "first", "last", "rows", "body_bytes")
    row = pieces.agg(f.count("*").alias("count"), f.bit_xor(piece).alias("together")).collect()[0]
    return f"{row['count']}/{row['together']}"


def salvageable(messages: DataFrame) -> DataFrame:
    """The messages whose bodies are whole, with the columns that the sink takes."""
    return messages.where("status = 'ok'").select(*COLUMNS)


def publish(rows: DataFrame, endpoints: str, queue: str, producer: str) -> None:
    """Returns when all are confirmed. `queue`: where all go; empty: to the queues that they were
    in."""
    sink = rows.write.format("ringmq").mode("append")
    sink = sink.options(endpoints=endpoints, producerId=producer)
    (sink.option("queue", queue) if queue else sink).save()
