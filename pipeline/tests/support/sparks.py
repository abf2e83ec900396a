"""The Spark session that the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringmq_pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a test whose Spark takes more processor time than `make test` has.
evidence = pytest.mark.skipif(
    not os.environ.get("RINGMQ_EXHAUSTIVE"), reason="make evidence-pipeline"
)

# Two tasks at once, and a task that fails is run again: with `local[2]` it never is.
MASTER = "local[2,3]"
SETTINGS = {
    # Tests have a few rows: each partition of a shuffle costs a task.
    "spark.sql.shuffle.partitions": "1",
    # To compile a query, or to plan it anew half way, takes longer than it runs.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # So do the JVM's second compiler and its collector's threads.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.showConsoleProgress": "false",
    # A failed task that a test provokes is no noise; one that it doesn't raises.
    "spark.log.level": "OFF",
}


@contextmanager
def shared_session(folder: Path) -> Iterator[SparkSession]:
    """`folder`: where Spark puts its own files."""
    places = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with spark_session("tests", master=MASTER, conf=SETTINGS | places) as session:
        yield session
