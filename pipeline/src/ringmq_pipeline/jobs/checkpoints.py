"""Spark's checkpoint of a query, read: its id, and from where to where its batches go.

`metadata` has the query's id. `offsets/N` is written before batch N begins; its second line has the
batch's time and watermark, its last the offset at which N ends. `commits/N` is written when N is
done, with the watermark of the batch behind it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.offsets import (
    OffsetError,
    QueueOffset,
    QueueRange,
    SourceOffset,
    from_json,
    noted_begin,
    ranges,
)


def query_of(checkpoint: Path) -> str:
    """Raises `JobError` where there is none."""
    try:
        found = json.loads((checkpoint / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError) as error:
        file = checkpoint / "metadata"
        raise JobError(f"{checkpoint} is no checkpoint of a query: {file}: {error}") from error
    return str(found)


def end_of(checkpoint: Path, number: int) -> dict[str, QueueOffset]:
    """The offset at which the batch ends; empty before the first one."""
    if number < 0:
        return {}
    file = checkpoint / "offsets" / str(number)
    try:
        return from_json(_last_line(file))
    except OffsetError as error:
        raise JobError(f"{file}: {error}") from error


def ranges_of(checkpoint: Path, number: int) -> tuple[QueueRange, ...]:
    """Of the batch. The first one notes where it begins; where an older version has planned it,
    each queue's range begins at 0, whatever was gone by then."""
    end = end_of(checkpoint, number)
    begin = end_of(checkpoint, number - 1)
    if number == 0:
        begin = noted_begin(_last_line(checkpoint / "offsets" / "0"))
    return tuple(ranges(begin, end))


def committed_end(checkpoint: Path) -> SourceOffset:
    """Where the newest batch ends that is done; empty before the first one."""
    return end_of(checkpoint, _newest_done(checkpoint))


def _newest_done(checkpoint: Path) -> int:
    """-1: none yet."""
    return max((int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def times_of(checkpoint: Path, number: int) -> tuple[int, int]:
    """The batch's watermark, and its own time, in milliseconds."""
    found = _second_line(checkpoint / "offsets" / str(number))
    return int(found["batchWatermarkMs"]), int(found["batchTimestampMs"])


def newest_watermark(checkpoint: Path) -> int:
    """Of the batch behind the newest that is done, in milliseconds; 0 before the first one."""
    newest = _newest_done(checkpoint)
    if newest < 0:
        return 0
    return int(_second_line(checkpoint / "commits" / str(newest))["nextBatchWatermarkMs"])


def _last_line(file: Path) -> str:
    return file.read_text().rstrip().rpartition("\n")[2]


def _second_line(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text().split("\n")[1])
    except (OSError, ValueError, IndexError) as error:
        raise JobError(f"{file}: this is no file of Spark's log: {error}") from error
    return found
