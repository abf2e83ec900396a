"""From the store of a node that is lost to the queues of a cluster.

Rows go out in the order of the store, queue by queue, as those of one producer: the broker trims
whatever an earlier attempt on the same store has published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


def salvageable(messages: DataFrame) -> DataFrame:
    """The messages whose bodies are whole, with the columns that the sink takes."""
    return messages.where("status = 'ok'").select(*COLUMNS)


def publish(rows: DataFrame, endpoints: str, queue: str, producer: str) -> None:
    """Returns when all are confirmed. `queue`: where all go; empty: to the queues that they were
    in."""
    sink = rows.write.format("ringmq").mode("append")
    sink = sink.options(endpoints=endpoints, producerId=producer)
    (sink.option("queue", queue) if queue else sink).save()
