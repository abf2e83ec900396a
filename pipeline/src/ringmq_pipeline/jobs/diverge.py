"""Where the stores of a queue's replicas differ.

A replica that was stopped earlier has applied fewer ops: it still has messages that others have
removed, and lacks the newest ones. Neither is a divergence. Of two replicas with one log:

* A message that is live behind an op is live at every earlier op since its publish. So a replica
  without it, that has published it and is not ahead, has lost it: `absent`.
* A replica that is ahead may have removed it: `ack_lag`.
* A replica whose next position isn't beyond it has not heard of it: `behind`.
* Two bodies or message ids at one position that all logs have in common: `altered`.

Logs of different epochs are compared up to the position where they part: the rest of one of them
was never confirmed, and is cut when its replica joins. From there on only a replica's own findings
count. Behind a fork, removes are compared with nothing, as the ops of both are not the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Of the kinds of a difference, those that are none after a kill.
DIVERGENT: Final = ("absent", "altered", "damaged", "missing")
LAGS: Final = ("ack_lag", "behind")
_REPLICAS: Final = (
    "queue_id STRING, common_end BIGINT, forked BOOLEAN, "
    "replicas ARRAY<STRUCT<node: STRING, last_op: BIGINT, next_position: BIGINT>>"
)


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """How far a replica is. `epochs`: epoch, first op and first position of each, rising."""

    node: str
    last_op: int
    next_position: int
    epochs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Comparable:
    """Below `common_end` all replicas have given out the same positions. `forked`: some replicas'
    logs part before either ends."""

    common_end: int
    forked: bool


def common_part(logs: Sequence[ReplicaLog]) -> Comparable:
    """What all these logs, two or more, have in common."""
    ends = [_common_of(a, b) for index, a in enumerate(logs) for b in logs[index + 1 :]]
    return Comparable(min(end for end, _ in ends), any(forked for _, forked in ends))


def _common_of(a: ReplicaLog, b: ReplicaLog) -> tuple[int, bool]:
    starts_a, starts_b = _starts(a), _starts(b)
    shared = [epoch for epoch in starts_a if epoch in starts_b]
    if not shared:
        return 0, bool(a.last_op and b.last_op)
    last = shared[-1]
    op_a, position_a = _end_of(a, last)
    op_b, position_b = _end_of(b, last)
    # The log that goes on in a later epoch must hold all that the other has of the shared one.
    forked = (op_a < op_b and last != a.epochs[-1][0]) or (op_b < op_a and last != b.epochs[-1][0])
    return min(position_a, position_b), forked or (
        last != a.epochs[-1][0] and last != b.epochs[-1][0]
    )


def _starts(log: ReplicaLog) -> list[int]:
    return [epoch for epoch, _, _ in log.epochs]


def _end_of(log: ReplicaLog, epoch: int) -> tuple[int, int]:
    """The number behind the last op of an epoch, and the next position there."""
    for found, op, position in log.epochs:
        if found > epoch:
            return op, position
    return log.last_op + 1, log.next_position


def logs_by_queue(queues: Sequence[Row]) -> dict[str, list[ReplicaLog]]:
    """Of the queues that have two readable replicas or more."""
    found: dict[str, list[ReplicaLog]] = defaultdict(list)
    for row in queues:
        if row["queue_id"] is not None and row["status"] == "ok":
            epochs = tuple((epoch, op, at) for epoch, op, at in json.loads(row["epochs"]))
            log = ReplicaLog(row["node"], row["last_op"], row["next_position"], epochs)
            found[row["queue_id"]].append(log)
    return {queue: logs for queue, logs in found.items() if len(logs) > 1}


def replicas_frame(spark: SparkSession, logs: dict[str, list[ReplicaLog]]) -> DataFrame:
    rows = []
    for queue, replicas in logs.items():
        common = common_part(replicas)
        listed = [(each.node, each.last_op, each.next_position) for each in replicas]
        rows.append((queue, common.common_end, common.forked, listed))
    return spark.createDataFrame(rows, _REPLICAS)


def differences(messages: DataFrame, replicas: DataFrame) -> DataFrame:
    """One row for each position and node with a difference, and its `kind`."""
    seen = (
        messages.where("position IS NOT NULL AND status IN ('ok', 'damaged', 'missing')")
        .groupBy("queue_id", "position")
        .agg(
            f.first("queue").alias("queue"),
            f.collect_list(
                f.struct(
                    "node",
                    "status",
                    "file",
                    "file_offset",
                    f.struct("body_crc32", "body_size", "message_id").alias("content"),
                )
            ).alias("found"),
        )
        .join(f.broadcast(replicas), "queue_id")
        .where(
            "size(found) < size(replicas) OR exists(found, x -> x.status != 'ok' "
            "OR NOT x.content <=> found[0].content)"
        )
    )
    each = seen.withColumn("replica", f.explode("replicas")).withColumn(
        "mine", f.expr("get(filter(found, x -> x.node = replica.node), 0)")
    )
    newest = (
        "array_max(transform(filter(replicas, y -> exists(found, x -> x.node = y.node)), "
        "y -> y.last_op))"
    )
    agreeing = (
        "size(filter(found, x -> x.status = 'ok' AND x.content <=> mine.content)) * 2 "
        "> size(filter(found, x -> x.status = 'ok'))"
    )
    kind = (
        f.when(f.expr("mine.status != 'ok'"), f.col("mine.status"))
        .when(f.expr(f"mine IS NOT NULL AND (position >= common_end OR {agreeing})"), None)
        .when(f.expr("mine IS NOT NULL"), f.lit("altered"))
        .when(f.expr("position >= replica.next_position"), f.lit("behind"))
        .when(
            f.expr(f"forked OR position >= common_end OR replica.last_op > {newest}"),
            f.lit("ack_lag"),
        )
        .otherwise(f.lit("absent"))
    )
    return (
        each.withColumn("kind", kind)
        .where("kind IS NOT NULL")
        .select(
            "queue",
            "queue_id",
            "position",
            f.col("replica.node").alias("node"),
            "kind",
            f.col("mine.file").alias("file"),
            f.col("mine.file_offset").alias("file_offset"),
        )
    )
