"""Samples of queues as rates, depths and times to drain, by queue and hour.

Two neighbouring samples of a queue are an interval. Its messages are spread evenly over its time,
so an interval that crosses an hour's end counts in both hours. Published messages are counted by
positions, which a failover doesn't change. The other totals begin anew with each master: after a
failover, the deliveries between the old master's last sample and its end are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from ringmq_pipeline.samples import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOUR_S: Final = 3600
# A queue that is declared anew is another one: its positions begin anew.
_QUEUE: Final = ("vhost", "queue", "id")
_TOTALS: Final = {
    "delivered": "delivered_total",
    "redelivered": "redelivered_total",
    "acked": "acknowledged_total",
}
_AMOUNTS: Final = ("published", *_TOTALS, "grown")


def read_samples(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """A line that a collector couldn't finish is left out."""
    read = spark.read.option("recursiveFileLookup", "true").schema(COLUMNS).json([*paths])
    return read.where("at IS NOT NULL AND id IS NOT NULL AND next_position IS NOT NULL")


def rollup(samples: DataFrame, *, gap_s: float = 600.0) -> DataFrame:
    """One row for each vhost, queue and hour. Nothing is said of the time between two samples that
    are more than `gap_s` apart."""
    hour = f.floor(f.col("at") / HOUR_S)
    depths = samples.groupBy("vhost", "queue", hour.alias("hour")).agg(
        f.count("*").alias("samples"),
        f.percentile("messages", f.array(f.lit(0.5), f.lit(0.99))).alias("depths"),
        f.max_by("messages", "at").alias("depth_last"),
        f.max_by("bytes", "at").alias("bytes_last"),
    )
    moved = (
        _shares(_intervals(samples, gap_s))
        .groupBy("vhost", "queue", "hour")
        .agg(
            f.sum("seconds").alias("seconds"),
            *(f.sum(name).alias(name) for name in _AMOUNTS),
            f.sum("failovers").alias("failovers"),
        )
    )
    shrinking = f.when(f.col("grown") < 0, -f.col("grown") / f.col("seconds"))
    return depths.join(moved, ["vhost", "queue", "hour"], "full").select(
        f.timestamp_seconds(f.col("hour") * HOUR_S).alias("hour"),
        "vhost",
        "queue",
        f.coalesce("samples", f.lit(0)).alias("samples"),
        f.round("seconds", 1).alias("seconds"),
        *(f.round(name, 1).alias(name) for name in ("published", *_TOTALS)),
        *(
            f.round(f.col(name) / f.col("seconds"), 3).alias(f"{name}_per_s")
            for name in ("published", "delivered", "acked")
        ),
        f.col("depths")[0].alias("depth_p50"),
        f.col("depths")[1].alias("depth_p99"),
        "depth_last",
        "bytes_last",
        f.when(f.col("delivered") > 0, f.round(f.col("redelivered") / f.col("delivered"), 6)).alias(
            "redelivered_share"
        ),
        # None: the queue didn't shrink.
        f.when(f.col("depth_last") == 0, 0.0)
        .otherwise(f.round(f.col("depth_last") / shrinking, 1))
        .alias("drain_s"),
        f.col("failovers").cast("bigint").alias("failovers"),
    )


def _intervals(samples: DataFrame, gap_s: float) -> DataFrame:
    in_time = Window.partitionBy(*_QUEUE).orderBy("at")

    def before(name: str) -> Column:
        return f.lag(name).over(in_time)

    def increase(total: str) -> Column:
        # A total that went back has begun anew, even with the same master.
        anew = (f.col("master") != before("master")) | (f.col(total) < before(total))
        return f.when(anew, f.col(total)).otherwise(f.col(total) - before(total))

    return samples.select(
        *_QUEUE,
        "at",
        before("at").alias("from"),
        (f.col("next_position") - before("next_position")).alias("published"),
        *(increase(total).alias(name) for name, total in _TOTALS.items()),
        (f.col("messages") - before("messages")).alias("grown"),
        f.when(f.col("master") != before("master"), 1).otherwise(0).alias("failovers"),
    ).where((f.col("at") > f.col("from")) & (f.col("at") - f.col("from") <= gap_s))


def _shares(intervals: DataFrame) -> DataFrame:
    """Each interval's part of each hour."""
    first, last = f.floor(f.col("from") / HOUR_S), f.floor(f.col("at") / HOUR_S)
    each = intervals.withColumn("hour", f.explode(f.sequence(first, last)))
    start = f.greatest(f.col("from"), f.col("hour") * HOUR_S)
    end = f.least(f.col("at"), (f.col("hour") + 1) * HOUR_S)
    share = (end - start) / (f.col("at") - f.col("from"))
    # A failover is no amount: it counts where the interval ends.
    failovers = f.when(f.col("hour") == last, f.col("failovers")).otherwise(0)
    return each.select(
        "vhost",
        "queue",
        "hour",
        (end - start).alias("seconds"),
        *((f.col(name) * share).alias(name) for name in _AMOUNTS),
        failovers.alias("failovers"),
    ).where("seconds > 0")
