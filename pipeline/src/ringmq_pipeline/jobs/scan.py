"""What is in the stores of nodes: messages and findings by node, queue and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counts(pieces: DataFrame) -> DataFrame:
    """One row for each node, queue and status."""
    return pieces.groupBy("node", "queue", "queue_id", "status").agg(
        f.sum("rows").alias("rows"),
        f.sum("body_bytes").alias("body_bytes"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
    )


def findings(pieces: DataFrame) -> DataFrame:
    """Whatever is no sound message, by its place."""
    return (
        pieces.where("status != 'ok'")
        .groupBy("node", "queue", "status", "file", "file_offset", "what")
        .agg(f.min("first").alias("first"), f.max("last").alias("last"))
        .orderBy("node", "queue", "file", "file_offset", "first")
    )
