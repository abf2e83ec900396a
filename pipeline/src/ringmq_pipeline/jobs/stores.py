"""Node directories as frames of Spark, for the verbs that look into them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OK: Final = "ok"


def stores_option(stores: Mapping[str, Path]) -> str:
    return ",".join(f"{node}={path}" for node, path in stores.items())


def messages_of(
    spark: SparkSession, stores: Mapping[str, Path], queues: str = "", **options: str
) -> DataFrame:
    """Live messages and findings."""
    return _load(spark, stores, queues, {"rows": "messages"} | options)


def pieces_of(spark: SparkSession, stores: Mapping[str, Path], queues: str = "") -> DataFrame:
    """The same, a row for each run of them: for who counts."""
    return _load(spark, stores, queues, {"rows": "pieces"})


def queues_of(spark: SparkSession, stores: Mapping[str, Path], queues: str = "") -> DataFrame:
    """How far each node is with each queue."""
    return _load(spark, stores, queues, {"rows": "queues"})


def _load(
    spark: SparkSession, stores: Mapping[str, Path], queues: str, options: Mapping[str, str]
) -> DataFrame:
    reader = spark.read.format("ringmq_store").options(stores=stores_option(stores), **options)
    return (reader.option("queues", queues) if queues else reader).load()
