"""What is in the stores of nodes: messages and findings by node, queue and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counts(messages: DataFrame) -> DataFrame:
    """One row for each node, queue and status."""
    return messages.groupBy("node", "queue", "queue_id", "status").agg(
        f.count("*").alias("rows"),
        f.coalesce(f.sum("body_size"), f.lit(0)).alias("body_bytes"),
        f.min("position").alias("first"),
        f.max("position").alias("last"),
    )


def findings(messages: DataFrame) -> DataFrame:
    """Whatever is no sound message, by its place."""
    return (
        messages.where("status != 'ok'")
        .groupBy("node", "queue", "status", "file", "file_offset", "what")
        .agg(f.min("position").alias("first"), f.max("position").alias("last"))
        .orderBy("node", "queue", "file", "file_offset", "first")
    )
