"""A Spark session with what the jobs rely on. pyspark is imported when one is made.

A master that begins with `local` is embedded in this process and listens on the loopback address
alone. Any other is a cluster's: its workers need Java and `ringmq[pipeline]` of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringmq_pipeline.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each can be overridden by the caller.
DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    # Small jobs pay for each partition; large ones ask for more.
    "spark.sql.shuffle.partitions": "4",
    # Times in a table mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # With Arrow, functions in Python would need pandas; our own pass whole Arrow batches.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    # Workers have the source's modules when they are forked, instead of importing them each.
    "spark.python.daemon.module": "ringmq_pipeline.worker_daemon",
    # What fails is raised; at `WARN`, each session says that it found no native Hadoop.
    "spark.log.level": "ERROR",
}
# Of glibc, for the JVM and its Python workers: they keep the pages of the pieces that they read,
# instead of clearing new ones for each. As the nodes do (`ringmq_node/resources/allocator.py`),
# where the reasons are.
ALLOCATOR: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
    "MALLOC_TOP_PAD_": str(1 << 20),
}
LOOPBACK: Final = "127.0.0.1"
LOCAL: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}


@contextmanager
def spark_session(
    app: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block. If this process has one already, that one is given, as
    it is, and stays. Raises `NoJavaError`."""
    running = _running_session()
    if running is not None:
        yield running
        return
    ensure_java()
    # By default it is `python3` of the PATH: another environment, which lacks our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # A user's own settings count.
    allocator = {name: os.environ.setdefault(name, size) for name, size in ALLOCATOR.items()}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    spark_home = os.environ.setdefault("SPARK_HOME", str(_pyspark_folder()))
    builder = import_module("pyspark.sql").SparkSession.builder.appName(app).master(master)
    executors = {f"spark.executorEnv.{name}": size for name, size in allocator.items()}
    local = LOCAL if master.startswith("local") else {}
    settings = DEFAULTS | executors | local | dict(conf or {})
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    application = spark.sparkContext.applicationId
    try:
        yield spark
    finally:
        spark.stop()
        if master.startswith("local-cluster"):
            # Its workers leave the folder of each application beside Spark's jars.
            shutil.rmtree(Path(spark_home, "work", application), ignore_errors=True)


def spark_name(path: Path) -> str:
    """As Spark takes the name of a local file that it writes, or of a checkpoint. It takes a URI's
    `%20` for three characters, and writes beside the folder that is meant."""
    return f"file://{path.absolute()}"


def spark_pattern(path: Path) -> str:
    """As Spark's readers take the name of a local file: they find `o1`, too, by the name `o[1]`."""
    return re.sub(r"[\[\]{}*?\\]", r"\\\g<0>", spark_name(path))


def _running_session() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:
        return None
    found: SparkSession | None = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
    return found


def _pyspark_folder() -> Path:
    return Path(str(import_module("pyspark").__file__)).parent
