"""Tables, each told by a query: Spark finds out in which order they have to be filled.

`orders` reads a queue. The source acknowledges by itself: messages leave the queue when Spark has
committed them to the table, and not before.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Each message of the queue is a row, once."""
    return (
        spark.readStream.format("ringmq")
        .option("endpoints", spark.conf.get("example.endpoints"))
        .option("queue", spark.conf.get("example.queue"))
        .load()
        .select(
            "position",
            f.from_json(
                f.col("body").cast("string"), "id BIGINT, country STRING, amount DOUBLE"
            ).alias("order"),
        )
        .select("position", "order.*")
    )


@dp.materialized_view
def amount_by_country() -> DataFrame:
    """Computed anew with each run."""
    return (
        spark.read.table("orders")
        .groupBy("country")
        .agg(f.count("*").alias("orders"), f.round(f.sum("amount"), 2).alias("amount"))
    )
