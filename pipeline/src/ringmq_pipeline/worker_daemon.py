"""The parent of Spark's Python workers: `python -m ringmq_pipeline.worker_daemon MODULE`.

Spark forks a worker for each task that runs at a time, lets it go when it was idle for a minute,
and has it collect all garbage after each task. With Spark's own daemon, each worker imports the
source and its client again, and pandas, where it is installed: as much processor time as some
100 000 messages take. And each collection goes through all objects of these modules. So they are
imported here once, before the first fork, and frozen: no collection in a worker looks at them.

Spark's daemon imports nothing before it forks, as threads don't survive a fork. The modules here
begin none that a worker misses (`pipeline/tests/unit/test_worker_daemon.py`): jemalloc's, which
pyarrow has within it, is begun again by jemalloc itself. Spark sets `OMP_NUM_THREADS` to a task's
cores, one by default, so numpy begins none.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Final

MODULES: Final = (
    "pyspark.worker",
    "pyarrow.compute",
    "pyspark_ringmq.batch",
    "pyspark_ringmq.stream",
    "pyspark_ringmq.writing",
)


def preload() -> None:
    for name in MODULES:
        import_module(name)
    # pyarrow imports pandas with the first value that it is given, if it is there.
    import_module("pyarrow").scalar(0)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload()
    import_module("pyspark.daemon").manager()
