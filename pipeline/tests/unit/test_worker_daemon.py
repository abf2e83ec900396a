from __future__ import annotations

import json
import os
import subprocess
import sys

# jemalloc's thread is begun again in a child by jemalloc.
SURVIVING = {"jemalloc_bg_thd"}

LOOK = """
import gc, json, os, sys
from ringmq_pipeline.worker_daemon import MODULES, preload
from pathlib import Path
preload()
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
child, parent = os.pipe()
if os.fork() == 0:
    import pyarrow
    from ringmq.calls.loop_thread import run_on_loop
    async def on_loop():
        return pyarrow.compute.sum(pyarrow.array(range(100_000))).as_py()
    os.write(parent, json.dumps([run_on_loop(on_loop()), gc.get_freeze_count()]).encode())
    os._exit(0)
os.wait()
[total, frozen] = json.loads(os.read(child, 4096))
print(json.dumps({
    "threads": threads,
    "total": total,
    "frozen": frozen,
    "tracked": len(gc.get_objects()),
    "missing": [name for name in MODULES if name not in sys.modules],
}))
"""


def test_what_is_imported_before_the_fork_is_frozen_and_works_behind_it() -> None:
    """A thread that the modules begin would be missing in each worker."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        # As Spark sets it for a worker.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    main, *threads = found["threads"]
    assert main.startswith("python")
    assert not {*threads} - SURVIVING
    assert found["missing"] == []
    assert found["total"] == sum(range(100_000))
    assert found["frozen"] > 50 * found["tracked"]
