"""The columns of the source's rows: messages with findings, pieces of these, and queues."""

from __future__ import annotations

from typing import Final

from ringmq_pipeline.schema import ENCODED, HEADERS, Column

# A finding has no position where it is about a file.
MESSAGES: Final = (
    Column("node", "STRING", "string", nullable=False),
    # As a node names it inside: in another vhost than `/`, that and a separator come before it.
    Column("queue", "STRING", "string", nullable=False),
    Column("vhost", "STRING", "string", nullable=False),
    # Replicas of one queue have the same, and a queue that was declared anew has another.
    Column("queue_id", "STRING", "string"),
    Column("epoch", "BIGINT", "int64"),
    Column("position", "BIGINT", "int64"),
    Column("status", "STRING", "string", nullable=False),
    Column("file", "STRING", "string", nullable=False),
    Column("file_offset", "BIGINT", "int64", nullable=False),
    Column("what", "STRING", "string"),
    Column("body", "BINARY", "binary"),
    Column("body_size", "BIGINT", "int64"),
    Column("body_crc32", "BIGINT", "int64"),
    Column("redelivered", "BOOLEAN", "bool_"),
    Column("persistent", "BOOLEAN", "bool_"),
    Column("message_id", "STRING", "string"),
    Column("correlation_id", "STRING", "string"),
    Column("reply_to", "STRING", "string"),
    Column("content_type", "STRING", "string"),
    Column("published_at", "TIMESTAMP", "timestamp_us_utc"),
    HEADERS,
    ENCODED,
)
# Messages at consecutive positions, of one record; or a finding, which has no positions where it is
# about a file. `rows`: as many as the piece has among `MESSAGES`.
PIECES: Final = (
    Column("node", "STRING", "string", nullable=False),
    Column("queue", "STRING", "string", nullable=False),
    Column("queue_id", "STRING", "string"),
    Column("status", "STRING", "string", nullable=False),
    Column("file", "STRING", "string", nullable=False),
    Column("file_offset", "BIGINT", "int64", nullable=False),
    Column("what", "STRING", "string"),
    Column("first", "BIGINT", "int64"),
    Column("last", "BIGINT", "int64"),
    Column("rows", "BIGINT", "int64", nullable=False),
    Column("body_bytes", "BIGINT", "int64", nullable=False),
)
QUEUES: Final = (
    Column("node", "STRING", "string", nullable=False),
    Column("queue", "STRING", "string", nullable=False),
    Column("queue_id", "STRING", "string"),
    Column("status", "STRING", "string", nullable=False),
    Column("what", "STRING", "string"),
    Column("last_op", "BIGINT", "int64", nullable=False),
    Column("next_position", "BIGINT", "int64", nullable=False),
    # JSON: where each epoch begins, as [epoch, first op, first position].
    Column("epochs", "STRING", "string", nullable=False),
    Column("live", "BIGINT", "int64", nullable=False),
    Column("missing", "BIGINT", "int64", nullable=False),
    Column("torn_bytes", "BIGINT", "int64", nullable=False),
    # Ops were lost, so the state is a guess on the safe side.
    Column("damaged", "BOOLEAN", "bool_", nullable=False),
    # The replica knows that it may lack confirmed messages.
    Column("partial", "BOOLEAN", "bool_", nullable=False),
)
