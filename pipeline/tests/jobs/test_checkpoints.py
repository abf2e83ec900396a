from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from spark_checkpoints import checkpoint_of

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.checkpoints import (
    committed_end,
    newest_watermark,
    query_of,
    ranges_of,
    times_of,
)
from ringmq_pipeline.offsets import QueueOffset, QueueRange, to_json


def test_a_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, 10, 25, done=2)
    assert query_of(checkpoint) == "query"
    assert ranges_of(checkpoint, 0) == (QueueRange("a", "id", 0, 0, 10),)
    assert ranges_of(checkpoint, 1) == (QueueRange("a", "id", 0, 10, 25),)


def test_the_first_batch_says_where_it_begins(tmp_path: Path) -> None:
    """Its table was told that it has all from 0 on."""
    checkpoint = checkpoint_of(tmp_path, 10, 25, done=1)
    file = checkpoint / "offsets" / "0"
    lines = file.read_text().split("\n")
    offset = to_json({"a": QueueOffset("id", 0, 10)}, begin={"a": QueueOffset("id", 0, 7)})
    file.write_text("\n".join([*lines[:-1], json.dumps(offset)]))
    assert ranges_of(checkpoint, 0) == (QueueRange("a", "id", 0, 7, 10),)
    assert ranges_of(checkpoint, 1) == (QueueRange("a", "id", 0, 10, 25),)


def test_a_batch_that_isnt_in_the_commit_log_isnt_committed(tmp_path: Path) -> None:
    ends = range(10, 130, 10)
    assert committed_end(checkpoint_of(tmp_path, *ends, done=11))["a"].position == 110


def test_a_new_checkpoint_has_committed_nothing(tmp_path: Path) -> None:
    assert committed_end(tmp_path) == {}
    with pytest.raises(JobError, match="no checkpoint"):
        query_of(tmp_path)


def test_times_are_of_the_batch_and_the_watermark_of_the_one_behind(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, 10, 25, done=1, watermark_ms=7, timestamp_ms=9)
    assert times_of(checkpoint, 1) == (7, 9)
    assert newest_watermark(checkpoint) == 7
    assert newest_watermark(tmp_path / "none") == 0


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "commits/0"])
def test_a_file_that_a_power_cut_has_emptied_is_named(name: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, 10, done=1)
    (checkpoint / name).write_bytes(b"")

    def read() -> tuple[object, ...]:
        return query_of(checkpoint), ranges_of(checkpoint, 0), newest_watermark(checkpoint)

    with pytest.raises(JobError, match=re.escape(f"{checkpoint / name}: ")):
        read()
