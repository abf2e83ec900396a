"""From files to a queue with Spark between them, with tasks that fail on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
import pytest
from live_node import LiveNode
from pyspark import TaskContext

from ringmq_pipeline.cli import invoke
from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.conditions import refuse_unsteady
from ringmq_pipeline.jobs.replay import ReplayJob, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 300
# Rows that the sink is given at a time: some are published before a task fails.
AT_A_TIME = "50"


@pytest.mark.compute
def test_a_replay_whose_tasks_fail_brings_each_row_once_and_in_order(
    spark: SparkSession, live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, files = "replayed", tmp_path / "files"
    files.mkdir()
    for part in range(2):
        numbers = range(part * ROWS, (part + 1) * ROWS)
        table = pyarrow.table({"number": [*numbers], "body": [b"%d" % each for each in numbers]})
        pyarrow.parquet.write_table(table, files / f"{part}.parquet")
    live.client.declare_queue(queue)

    def fails_at_first(number: int) -> bool:
        """Here, as workers can't import this module."""
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and number % ROWS == 250:
            raise RuntimeError("planned")
        return True

    spark.udf.register("fails_at_first", fails_at_first, "boolean")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", AT_A_TIME)
    words = ["replay", "--from", str(files), "--queue", queue, "--endpoints", live.address]
    words += ["--progress", str(tmp_path / "progress"), "--where", "fails_at_first(number)"]
    try:
        assert invoke([*words, "--quiet"]) == 0
        done = json.loads(capsys.readouterr().out)
        # The note of the second file is lost: as if the job had died before it.
        noted = (tmp_path / "progress").read_text().splitlines()
        (tmp_path / "progress").write_text("\n".join(noted[:-1]) + "\n")
        assert invoke([*words, "--quiet", "--resume"]) == 0
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    again = json.loads(capsys.readouterr().out)
    assert (done["rows"], again["units"], again["units_skipped"]) == (2 * ROWS, 1, 1)
    assert live.bodies(queue) == [b"%d" % number for number in range(2 * ROWS)]


def test_rows_come_in_the_order_of_their_positions_with_their_properties(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """Files of either kind: in order, and not. `where` may name what isn't published."""
    queue, files = "reordered", tmp_path / "files"
    files.mkdir()
    parts = ([0, 1, 2, 3], [7, 5, 6, 4])
    for number, positions in enumerate(parts):
        columns = {
            "queue": ["elsewhere"] * 4,
            "epoch": [1] * 4,
            "position": positions,
            "body": [b"%d" % each for each in positions],
            "message_id": [f"id {each}" for each in positions],
            "other": positions,
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), files / f"{number}.parquet")
    live.client.declare_queue(queue)
    sink = {"endpoints": live.address, "queue": queue}
    job = ReplayJob(files, sink, tmp_path / "progress", where="other <> 2")
    tally = replay(spark, job, show=lambda _tally, _units: None)
    assert (tally.units, tally.rows) == (2, 7)
    batches = live.client.reader(queue).browse(live.stat(queue).first)
    messages = [message for batch in batches for message in batch.messages]
    assert [message.body for message in messages] == [b"0", b"1", b"3", b"4", b"5", b"6", b"7"]
    assert [message.properties.message_id for message in messages] == [
        f"id {message.body.decode()}" for message in messages
    ]


def test_files_of_a_unit_may_have_different_columns(
    spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    """An ingest to Parquet that was started again with other options."""
    queue, files = "columns", tmp_path / "files"
    files.mkdir()
    for number, more in enumerate(({}, {"message_id": ["id 1", "id 3"]})):
        columns = {
            "queue": ["elsewhere"] * 2,
            "epoch": [1] * 2,
            "position": [number, number + 2],
            "body": [b"%d" % number, b"%d" % (number + 2)],
        }
        pyarrow.parquet.write_table(pyarrow.table(columns | more), files / f"{number}.parquet")
    live.client.declare_queue(queue)
    job = ReplayJob(files, {"endpoints": live.address, "queue": queue}, tmp_path / "progress")
    assert replay(spark, job, show=lambda _tally, _units: None).rows == 4
    batches = live.client.reader(queue).browse(live.stat(queue).first)
    found = {m.body: m.properties.message_id for batch in batches for m in batch.messages}
    assert found == {b"0": "", b"1": "id 1", b"2": "", b"3": "id 3"}


def test_a_large_file_is_one_task(spark: SparkSession, live: LiveNode, tmp_path: Path) -> None:
    """Of 16 MiB, in 16 row groups: Spark would divide it between two cores."""
    queue, file, count = "large", tmp_path / "file.parquet", 64
    columns = {
        "queue": ["elsewhere"] * count,
        "epoch": [1] * count,
        "position": [*range(count)],
        "body": [os.urandom(256 << 10) for _ in range(count)],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), file, row_group_size=4)

    def is_first_task(_position: int) -> bool:
        context = TaskContext.get()
        return context is not None and context.partitionId() == 0

    spark.udf.register("is_first_task", is_first_task, "boolean")
    live.client.declare_queue(queue)
    sink = {"endpoints": live.address, "queue": queue}
    job = ReplayJob(file, sink, tmp_path / "progress", where="is_first_task(position)")
    assert replay(spark, job, show=lambda _tally, _units: None).rows == count
    assert live.bodies(queue) == columns["body"]


@pytest.mark.parametrize("name", ["o[1]", "{a,b}", "st*r", "q?m", "back\\slash", "100%", "a%20b"])
def test_a_folders_name_is_no_pattern(
    name: str, spark: SparkSession, live: LiveNode, tmp_path: Path
) -> None:
    queue = f"named-{name.encode().hex()}"
    for other in ("o1", "a", "b", "star", "qom", "backslash", "a b", name):
        (tmp_path / other).mkdir()
        table = pyarrow.table({"body": [other.encode()]})
        pyarrow.parquet.write_table(table, tmp_path / other / "0.parquet")
    live.client.declare_queue(queue)
    sink = {"endpoints": live.address, "queue": queue}
    job = ReplayJob(tmp_path / name, sink, tmp_path / "progress")
    assert replay(spark, job, show=lambda _tally, _units: None).rows == 1
    assert live.bodies(queue) == [name.encode()]


def test_a_table_of_many_small_files_keeps_its_order(
    spark: SparkSession, live: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries of five files, the last one of three."""
    queue, files, count = "small", tmp_path / "files", 13
    files.mkdir()
    for number in range(count):
        table = pyarrow.table({"body": [b"%d" % number]})
        pyarrow.parquet.write_table(table, files / f"{number:02}.parquet")
    live.client.declare_queue(queue)
    monkeypatch.setattr("ringmq_pipeline.jobs.replay.QUERY_UNITS", 5)
    done: list[int] = []
    job = ReplayJob(files, {"endpoints": live.address, "queue": queue}, tmp_path / "progress")
    replay(spark, job, show=lambda tally, _units: done.append(tally.units))
    assert done == [5, 10, 13]
    assert live.bodies(queue) == [b"%d" % number for number in range(count)]


UNSTEADY = [
    "at > current_timestamp()",
    "at > now() - INTERVAL 1 DAY",
    "day = current_date",
    "day = curdate()",
    "at > localtimestamp()",
    "number > unix_timestamp()",
    "text = current_user()",
    "number > rand()",
    "number > rand(7)",
    "number > randn()",
    "text = uuid()",
    "number = shuffle(array(1, 2))[0]",
    "number IN (SELECT id FROM range(3) WHERE rand() > 0.5)",
    "number = (SELECT max(id) FROM range(3) WHERE now() > TIMESTAMP '2026-01-01')",
    "exists(array(1), x -> now() > TIMESTAMP '2026-01-01')",
    # Spark takes these texts for times.
    "at > 'now'",
    "day = CAST(' Today UTC' AS DATE)",
    "at > to_timestamp('yesterday')",
    "at > timestamp /* of the run */ 'now'",
    'day < DATE"tomorrow"',
]
STEADY = [
    "text = 'now'",
    "text IN ('now', 'today', \"rand()\")",
    "text LIKE '%current_timestamp()%' -- now()",
    "length('today') = number",
    "`now()` = 1",
    "at > '2026-01-01'",
    "at > TIMESTAMP '2026-01-01 00:00:00' AND day = DATE '2026-01-01'",
    "number IN (SELECT id FROM range(3))",
]


def test_a_condition_that_may_change_its_mind_is_refused(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT TIMESTAMP '2026-01-01' AS at, DATE '2026-01-01' AS day, 1 AS number, "
        "'now' AS text, 1 AS `now()`"
    )
    for where in STEADY:
        refuse_unsteady(frame, where)
    for where in UNSTEADY:
        with pytest.raises(JobError, match="time of the run"):
            refuse_unsteady(frame, where)


def test_a_condition_is_judged_before_anything_is_done(
    spark: SparkSession, live: LiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No progress file is left, which would be one of this condition."""
    queue, file = "judged", tmp_path / "file.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": [b"1", b"2"], "number": [1, 2]}), file)
    live.client.declare_queue(queue)
    words = ["replay", "--from", str(file), "--queue", queue, "--endpoints", live.address]
    words += ["--progress", str(tmp_path / "progress"), "--quiet", "--where"]
    assert invoke([*words, "number > rand()"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "may choose other rows" in line
    assert (live.stat(queue).messages, (tmp_path / "progress").exists()) == (0, False)
    assert invoke([*words, "number > 1"]) == 0
    assert live.bodies(queue) == [b"2"]
