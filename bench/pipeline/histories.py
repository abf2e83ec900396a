"""The history of a run that never was, as large as wanted, and `verify` in a heap of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.measure import BenchError
from bench.pipeline.measured import Done
from ringmq_pipeline.cli.errors import EXIT_FOUND
from ringmq_pipeline.jobs.histories import read_histories

HEAP = "3g"
VERIFY_S = 3600.0
# Events of a message: it is published, confirmed, delivered and acked.
EVENTS_OF_MESSAGE = 4
# Messages of a batch, which are one record of each event.
BATCH = 10
TAGS = 8
# Of batches: one is never delivered, another one comes again after its acks.
LOST, REPEATED = 7, 11
EVENTS_MIN = EVENTS_OF_MESSAGE * BATCH * (REPEATED + 1)
PLANTED: Mapping[str, int] = {"confirmed and lost": BATCH, "acked, and delivered again": BATCH}
# It waits for its JVM: the processor time of a process counts for those who have waited for it.
_VERB = """
import sys
from pyspark import SparkContext
from ringmq_pipeline.cli import invoke
code = invoke(sys.argv[1:])
if SparkContext._gateway is not None:
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait()
sys.exit(code)
"""


def write_history(path: Path, events: int) -> int:
    """Returns how many messages it has: all are published, confirmed and, in sum, delivered."""
    batches = events // EVENTS_OF_MESSAGE // BATCH
    with path.open("w") as file:
        for batch in range(batches):
            position, at = batch * BATCH, batch * 1e-3
            tag, first = batch % TAGS, batch // TAGS * BATCH
            messages = f'"tag": "p{tag}", "first": {first}, "last": {first + BATCH - 1}'
            run = (
                f'{{"position": {position}, "tag": "p{tag}", "number": {first}, "count": {BATCH}, '
                '"redelivered": %s}'
            )
            acked = f'"consumer": "c", "ranges": [[{position}, {position + BATCH - 1}]]'
            records = [
                ("publish", messages),
                ("confirm", f'{messages}, "epoch": 1, "master": "a"'),
                ("deliver", f'"consumer": "c", "stream": 1, "runs": [{run % "false"}]'),
                ("ack", acked),
                ("deliver", f'"consumer": "d", "stream": 1, "runs": [{run % "true"}]'),
            ]
            for kind, rest in records[: 2 if batch == LOST else 5 if batch == REPEATED else 4]:
                file.write(f'{{"kind": "{kind}", "at": {at:.3f}, "queue": "q", {rest}}}\n')
        file.write('{"kind": "drained", "at": 1e9, "queue": "q"}\n')
    return batches * BATCH


def verify_in_heap(path: Path, folder: Path, master: str) -> dict[str, Any]:
    """The summary of the verb `verify`, in a process whose JVM has a heap of `HEAP`. `folder`: for
    what Spark sorts. Raises `BenchError` if it ends with another code than that for findings."""
    settings = {
        "spark.driver.memory": HEAP,
        "spark.sql.shuffle.partitions": "16",
        "spark.local.dir": str(folder),
    }
    words = [sys.executable, "-c", _VERB, "verify", "--history", str(path), "--master", master]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=VERIFY_S)
    if done.returncode != EXIT_FOUND:
        raise BenchError(f"verify has ended with {done.returncode}: {done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def judge(path: Path, folder: Path, master: str, messages: int) -> Done:
    """Raises `BenchError` unless `verify` counts all messages and finds what is planted."""
    summary = verify_in_heap(path, folder, master)
    counts = {summary[name] for name in ("published", "confirmed", "delivered")}
    if summary["violations"] != PLANTED or counts != {messages}:
        raise BenchError(f"verify has judged {messages} messages wrongly: {summary}")
    return Done(messages * EVENTS_OF_MESSAGE)


def parse_alone(spark: SparkSession, path: Path, messages: int) -> Done:
    """All columns of the history, which nobody looks at."""
    read_histories(spark, [str(path)]).write.format("noop").mode("overwrite").save()
    return Done(messages * EVENTS_OF_MESSAGE)
