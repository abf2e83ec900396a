from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql.functions import udf

from ringmq_node.resources.allocator import KEPT
from ringmq_pipeline.session import ALLOCATOR, spark_session
from ringmq_pipeline.worker_daemon import MODULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    """Else, in an environment that isn't activated, they lack our packages."""
    prefix = udf(lambda _: sys.prefix, "string")
    [row] = spark.range(1).select(prefix("id")).collect()
    assert row[0] == sys.prefix


def test_workers_have_the_modules_of_the_source_when_they_begin(spark: SparkSession) -> None:
    """To import them takes as much processor time as many thousands of messages."""
    names = MODULES
    has = udf(lambda _: " ".join(name for name in names if name in sys.modules), "string")
    [row] = spark.range(1).select(has("id")).collect()
    assert row[0] == " ".join(MODULES)


def test_workers_keep_the_pages_of_their_buffers_as_nodes_do(spark: SparkSession) -> None:
    names = sorted(ALLOCATOR)
    assert sorted(map(int, ALLOCATOR.values())) == sorted(size for _, size in KEPT)
    has = udf(lambda _: " ".join(os.environ.get(name, "") for name in names), "string")
    [row] = spark.range(1).select(has("id")).collect()
    assert row[0] == " ".join(ALLOCATOR[name] for name in names)
    for name, size in ALLOCATOR.items():
        assert spark.conf.get(f"spark.executorEnv.{name}") == size


def test_a_job_in_a_process_with_a_session_uses_that(spark: SparkSession) -> None:
    with spark_session("another") as found:
        assert found is spark
    assert spark.range(3).count() == 3
