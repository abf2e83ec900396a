#!/opt/ringmq/bin/python
"""A Spark master or worker in the foreground, on the Java that the pipeline finds:

    spark_daemon.py master --host spark-master --port 7077
    spark_daemon.py worker --cores 1 --memory 1g spark://spark-master:7077

The words behind the first one are for Spark's own class. A worker's executors run on its Java.
"""

import os
import sys
from pathlib import Path

import pyspark

from ringmq_pipeline.java import ensure_java

KINDS = {"master": "master.Master", "worker": "worker.Worker"}


def main(words: list[str]) -> None:
    if not words or words[0] not in KINDS:
        sys.exit(f"usage: spark_daemon.py {'|'.join(KINDS)} OPTIONS")
    ensure_java()
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    os.execv(spark_class, [spark_class, f"org.apache.spark.deploy.{KINDS[words[0]]}", *words[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
