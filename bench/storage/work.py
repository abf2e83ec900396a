"""The workloads, each in a process of its own: `python -m bench.storage.work NAME DIRECTORY JSON`.

JSON holds the workload's parameters by name; all are whole numbers, sizes in bytes. The workload
tells its phases as `events` on stdout. The process that starts it (`watch`) samples its memory and
its files meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench.storage import driver
from bench.storage.backlog_work import backlog, fill, fill_queues, recover, recover_queues
from bench.storage.churn_work import compaction
from bench.storage.events import Teller
from bench.storage.rate_work import append, consume, fan_out, limit

Work = Callable[..., Coroutine[Any, Any, None]]

WORK: dict[str, Work] = {
    work.__name__: work
    for work in (
        append,
        limit,
        consume,
        backlog,
        fill,
        recover,
        fill_queues,
        recover_queues,
        fan_out,
        compaction,
    )
}


def main(name: str, directory: str, parameters: str) -> None:
    driver.run(WORK[name](Teller(), Path(directory), **json.loads(parameters)))


if __name__ == "__main__":
    main(*sys.argv[1:])
