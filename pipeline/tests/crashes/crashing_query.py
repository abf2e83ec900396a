"""A streaming query that kills itself, and its JVM, where it is told to.

    python crashing_query.py ADDRESS QUEUE FOLDER ACK_MODE POINT

It leaves one file for each batch in FOLDER/rows, whose name is the batch's: a batch that is
processed again replaces its own. POINT: `before-sink` and `after-sink` of the second batch, the
latter before Spark has noted it as done; `at-the-end`, when the query has ended; or `never`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringmq_pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CRASHING_BATCH = 1


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def main(address: str, queue: str, folder: Path, ack_mode: str, point: str) -> None:
    rows_folder = folder / "rows"
    rows_folder.mkdir(exist_ok=True)

    def process(rows: DataFrame, batch_id: int) -> None:
        crashes = batch_id == CRASHING_BATCH
        if crashes and point == "before-sink":
            die()
        listed = [[row.position, bytes(row.body).decode()] for row in rows.collect()]
        partial = rows_folder / "partial"
        partial.write_text(json.dumps(listed))
        partial.rename(rows_folder / f"{batch_id}.json")
        if crashes and point == "after-sink":
            die()

    with spark_session("crashing", master="local[2]") as spark:
        query = (
            spark.readStream.format("ringmq")
            .options(endpoints=address, queue=queue, maxMessagesPerTrigger="40")
            .options(ackMode=ack_mode, leaseHolder="the one that crashes")
            .load()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if point == "at-the-end":
            die()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
