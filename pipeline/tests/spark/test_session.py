from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.functions import udf

from ringmq_pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    """Else, in an environment that isn't activated, they lack our packages."""
    prefix = udf(lambda _: sys.prefix, "string")
    [row] = spark.range(1).select(prefix("id")).collect()
    assert row[0] == sys.prefix


def test_a_job_in_a_process_with_a_session_uses_that(spark: SparkSession) -> None:
    with spark_session("another") as found:
        assert found is spark
    assert spark.range(3).count() == 3
