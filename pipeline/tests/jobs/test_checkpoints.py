from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.checkpoints import committed_end, query_of, ranges_of
from ringmq_pipeline.offsets import QueueOffset, QueueRange, to_json


def checkpoint_of(folder: Path, *ends: int, done: int) -> Path:
    """As Spark 4.3 writes it; the first `done` batches are committed."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    (folder / "metadata").write_text('{"id":"query"}')
    for number, end in enumerate(ends):
        offset = json.dumps(to_json({"a": QueueOffset("id", 0, end)}))
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')
        # Beside each file is its checksum.
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < done:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def test_a_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, 10, 25, done=2)
    assert query_of(checkpoint) == "query"
    assert ranges_of(checkpoint, 0) == (QueueRange("a", "id", 0, 0, 10),)
    assert ranges_of(checkpoint, 1) == (QueueRange("a", "id", 0, 10, 25),)


def test_a_batch_that_isnt_in_the_commit_log_isnt_committed(tmp_path: Path) -> None:
    ends = range(10, 130, 10)
    assert committed_end(checkpoint_of(tmp_path, *ends, done=11))["a"].position == 110


def test_a_new_checkpoint_has_committed_nothing(tmp_path: Path) -> None:
    assert committed_end(tmp_path) == {}
    with pytest.raises(JobError, match="no checkpoint"):
        query_of(tmp_path)
