"""Spark's checkpoint of a query, read: its id, and from where to where its batches go.

`metadata` has the query's id. `offsets/N` is written before batch N begins; its last line is the
offset at which N ends. `commits/N` is written when N is done.
"""

from __future__ import annotations

import json
from pathlib import Path

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.offsets import QueueOffset, QueueRange, SourceOffset, from_json, ranges


def query_of(checkpoint: Path) -> str:
    """Raises `JobError` where there is none."""
    try:
        found = json.loads((checkpoint / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError) as error:
        raise JobError(f"{checkpoint} is no checkpoint of a query: {error}") from error
    return str(found)


def end_of(checkpoint: Path, number: int) -> dict[str, QueueOffset]:
    """The offset at which the batch ends; empty before the first one."""
    if number < 0:
        return {}
    text = (checkpoint / "offsets" / str(number)).read_text()
    return from_json(text.rstrip().rpartition("\n")[2])


def ranges_of(checkpoint: Path, number: int) -> tuple[QueueRange, ...]:
    """Of the batch; in the first one, each queue's begins at 0, whatever was gone by then."""
    return tuple(ranges(end_of(checkpoint, number - 1), end_of(checkpoint, number)))


def committed_end(checkpoint: Path) -> SourceOffset:
    """Where the newest batch ends that is done; empty before the first one."""
    done = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")]
    return end_of(checkpoint, max(done, default=-1))
