"""Statistics of queues, taken again and again: the archive that `rollup` reads.

A line of JSON for each queue and moment, in one file for each hour (UTC) of the archive's folder:

    {"at": 1795426320.25, "vhost": "/", "queue": "orders", "id": "...", "master": "a.7",
     "messages": 120, "bytes": 122880, "next_position": 5000, "delivered_total": 4900, ...}

`at` is in seconds since 1970, by the clock of the process that collects. `master` is the node and
its incarnation: the totals count from when it became the master. A queue without a master has no
line, as nobody knows its depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ringmq import QueueInfo, QueueState
from ringmq.errors import RingMQError

# In Spark's words.
COLUMNS: Final = (
    "at DOUBLE, vhost STRING, queue STRING, id STRING, master STRING, messages BIGINT, "
    "bytes BIGINT, next_position BIGINT, delivered_total BIGINT, redelivered_total BIGINT, "
    "acknowledged_total BIGINT"
)
_WITH_MASTER: Final = (QueueState.RUNNING, QueueState.FLOW, QueueState.MINORITY)


def sample(info: QueueInfo, at: float) -> dict[str, object] | None:
    """None for a queue without a master."""
    if info.state not in _WITH_MASTER or not info.ring:
        return None
    return {
        "at": round(at, 3),
        "vhost": info.vhost,
        "queue": info.queue,
        "id": info.id,
        "master": f"{info.master}.{info.ring[0].incarnation}",
        "messages": info.messages_ready + info.messages_unacknowledged,
        "bytes": info.bytes_ready + info.bytes_unacknowledged,
        "next_position": info.next_position,
        "delivered_total": info.delivered_total,
        "redelivered_total": info.redelivered_total,
        "acknowledged_total": info.acknowledged_total,
    }


def append(folder: Path, infos: Iterable[QueueInfo], at: float) -> int:
    """Writes one round's lines at once; returns how many."""
    lines = [json.dumps(line) for info in infos if (line := sample(info, at)) is not None]
    if lines:
        hour = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{hour}.jsonl").open("a") as file:
            file.write("\n".join((*lines, "")))
    return len(lines)


def collect(
    folder: Path,
    list_queues: Callable[[], Iterable[QueueInfo]],
    *,
    every_s: float,
    for_s: float | None,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    told: Callable[[int, str], None],
) -> tuple[int, int]:
    """Rounds that were written and rounds in which no node answered, until `for_s` are over.

    `told` hears after each round how many lines there are, and of an error. Rounds keep to their
    times, whatever one takes."""
    begun = due = clock()
    rounds = failed = lines = 0
    while for_s is None or due <= begun + for_s:
        try:
            lines += append(folder, list_queues(), clock())
            rounds += 1
            told(lines, "")
        except RingMQError as error:
            failed += 1
            told(lines, str(error))
        due = max(due + every_s, clock())
        if for_s is None or due <= begun + for_s:
            sleep(max(0.0, due - clock()))
    return rounds, failed
