"""Where the stores of a queue's replicas differ.

A replica that was stopped earlier has applied fewer ops: it still has messages that others have
removed, and lacks the newest ones. Neither is a divergence. Of two replicas with one log:

* A message that is live behind an op is live at every earlier op since its publish. So a replica
  without it, that has published it and is not ahead, has lost it: `absent`.
* A replica that is ahead may have removed it: `ack_lag`.
* A replica whose next position isn't beyond it has not heard of it: `behind`.
* Two bodies or message ids at one position of one log: `altered`.

Logs of different epochs may part, at a *fork*: the rest of one of them was never confirmed, and is
cut when its replica joins. Behind a fork, neither positions nor removes of the two are compared.
Below it, a replica without a message may have removed it behind the fork, or may have lost it.
The stores alone can't tell if no replica with its own log has the message: `uncertain`.

A store without a queue that the others have is a finding about the queue: `absent_replica`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from ringmq_pipeline.jobs.stores import pieces_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Of the kinds of a difference, those that are none after a kill.
DIVERGENT: Final = ("absent", "altered", "damaged", "missing")
UNCERTAIN: Final = "uncertain"
LAGS: Final = ("ack_lag", "behind")
# `within`: the nodes whose logs have all of this one's ops, itself as well. `forked_from`: those
# whose logs part from it, the last of them at the position `fork_end`.
_REPLICAS: Final = (
    "queue_id STRING, common_end BIGINT, replicas ARRAY<STRUCT<node: STRING, "
    "next_position: BIGINT, within: ARRAY<STRING>, forked_from: ARRAY<STRING>, fork_end: BIGINT>>"
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
    """Of the replicas that can be read."""
    found: dict[str, list[ReplicaLog]] = defaultdict(list)
    for row in queues:
        if row["queue_id"] is not None and row["status"] == "ok":
            epochs = tuple((epoch, op, at) for epoch, op, at in json.loads(row["epochs"]))
            log = ReplicaLog(row["node"], row["last_op"], row["next_position"], epochs)
            found[row["queue_id"]].append(log)
    return dict(found)


@dataclass(frozen=True, slots=True)
class AbsentReplica:
    """A store without a queue that others have."""

    node: str
    queue: str
    queue_id: str


def absent_replicas(
    queues: Sequence[Row], nodes: Sequence[str], replicas: int = 0
) -> list[AbsentReplica]:
    """`replicas`: how many of these nodes have a queue; 0: all. A replica that can't be read is
    there."""
    having: dict[str, set[str]] = defaultdict(set)
    names = {}
    for row in queues:
        if row["queue_id"] is not None:
            having[row["queue_id"]].add(row["node"])
            names[row["queue_id"]] = row["queue"]
    wanted = min(replicas or len(nodes), len(nodes))
    return [
        AbsentReplica(node, names[queue_id], queue_id)
        for queue_id, found in sorted(having.items())
        if len(found) < wanted
        for node in nodes
        if node not in found
    ]


def replicas_frame(spark: SparkSession, logs: Mapping[str, Sequence[ReplicaLog]]) -> DataFrame:
    """Of the queues with two replicas or more: there is nothing to compare one with."""
    rows = []
    for queue, replicas in logs.items():
        if len(replicas) > 1:
            common_end = common_part(replicas).common_end
            rows.append((queue, common_end, [_replica_row(each, replicas) for each in replicas]))
    return spark.createDataFrame(rows, _REPLICAS)


def _replica_row(
    log: ReplicaLog, replicas: Sequence[ReplicaLog]
) -> tuple[str, int, list[str], list[str], int]:
    within, forked_from, fork_end = [], [], 0
    for other in replicas:
        end, forked = _common_of(log, other)
        if forked:
            forked_from.append(other.node)
            fork_end = max(fork_end, end)
        elif log.last_op <= other.last_op:
            within.append(other.node)
    return log.node, log.next_position, within, forked_from, fork_end


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
    # Those whose message at this position is to be the same one.
    peers = (
        "filter(found, x -> x.status = 'ok' AND (position < common_end "
        "OR NOT array_contains(replica.forked_from, x.node)))"
    )
    agreeing = f"size(filter({peers}, x -> x.content <=> mine.content)) * 2 > size({peers})"
    kind = (
        f.when(f.expr("mine.status != 'ok'"), f.col("mine.status"))
        .when(f.expr(f"mine IS NOT NULL AND {agreeing}"), None)
        .when(f.expr("mine IS NOT NULL"), f.lit("altered"))
        .when(f.expr("position >= replica.next_position"), f.lit("behind"))
        .when(f.expr("exists(found, x -> array_contains(replica.within, x.node))"), f.lit("absent"))
        .when(
            f.expr("exists(found, x -> NOT array_contains(replica.forked_from, x.node))"),
            f.lit("ack_lag"),
        )
        .when(f.expr("position < replica.fork_end"), f.lit(UNCERTAIN))
        .otherwise(f.lit("ack_lag"))
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


def torn_tails(
    spark: SparkSession, stores: Mapping[str, Path], queues: Sequence[Row]
) -> list[dict[str, Any]]:
    """Node, queue, file and offset of each. Only queues that have one are read once more."""
    found = []
    for node, store in stores.items():
        torn = [row["queue_id"] for row in queues if row["node"] == node and row["torn_bytes"]]
        if torn:
            pieces = pieces_of(spark, {node: store}, ",".join(torn)).where("status = 'torn'")
            columns = ("node", "queue", "file", "file_offset", "what")
            rows = pieces.select(*columns).orderBy("queue", "file").collect()
            found += [{"kind": "torn", **row.asDict()} for row in rows]
    return found
