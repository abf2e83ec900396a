from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from power_cuts import Synced

from ringmq_node.queue.state import PRODUCERS_MAX
from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.replay import QUERY_UNITS, ReplayJob, ReplayProgress, replay
from ringmq_pipeline.jobs.replay_units import ReplayUnit, is_ordered, queries_of, units_of
from ringmq_pipeline.sinks.batches import WrittenFile
from ringmq_pipeline.sinks.locks import locked

ROOT = Path("/lake")


def file(
    name: str, positions: tuple[int, int] | None, rows: int = 10, size: int = 100
) -> WrittenFile:
    return WrittenFile(ROOT / name, rows, size, positions)


def names(files: list[WrittenFile]) -> list[list[str]]:
    return [[path.name for path in unit.files] for unit in units_of(ROOT, files)]


def test_units_come_in_the_order_of_their_positions() -> None:
    assert names([file("a", (50, 99)), file("b", (100, 120)), file("c", (0, 49))]) == [
        ["c"],
        ["a"],
        ["b"],
    ]


def test_files_whose_positions_overlap_are_one_unit() -> None:
    """One after the other, they would bring a queue's messages out of order."""
    overlapping = [
        file("a", (0, 60)),
        file("b", (10, 20)),
        file("c", (50, 70)),
        file("d", (71, 71)),
    ]
    assert names(overlapping) == [["a", "b", "c"], ["d"]]
    assert names([file("b", None), file("a", None)]) == [["b"], ["a"]]


def test_a_units_key_is_of_its_files_alone() -> None:
    [one] = units_of(ROOT, [file("a", (0, 9)), file("b", (5, 20))])
    [two] = units_of(Path("/moved"), [WrittenFile(Path("/moved/b"), 1, 1, (5, 9))])
    [alone] = units_of(ROOT, [file("b", (5, 20))])
    assert alone.key == two.key != one.key


def test_a_query_has_consecutive_units_with_the_same_columns(tmp_path: Path) -> None:
    """Each query costs as much as many rows; what is in one is published again if it dies."""
    kinds = {"a": "body", "b": "body", "c": "body", "d": "other", "e": "body", "f": "body"}
    units = []
    for name, column in kinds.items():
        pyarrow.parquet.write_table(pyarrow.table({column: [b"x"]}), tmp_path / name)
        units.append(ReplayUnit(name, (tmp_path / name,), 10, 100))

    def keys(rows_max: int, bytes_max: int, units_max: int = 100) -> list[str]:
        found = queries_of(units, units_max=units_max, rows_max=rows_max, bytes_max=bytes_max)
        return ["".join(unit.key for unit in query) for query in found]

    assert keys(1000, 1000) == ["abc", "d", "ef"]
    assert keys(20, 1000) == keys(1000, 200) == ["ab", "c", "d", "ef"]
    # A unit that is larger alone is a query all the same.
    assert keys(1, 1000) == keys(1000, 1) == [*"abcdef"]
    assert keys(1000, 1000, units_max=2) == ["ab", "c", "d", "ef"]
    assert keys(1000, 1000, units_max=1) == [*"abcdef"]
    assert queries_of([], units_max=1, rows_max=1, bytes_max=1) == []


def test_a_query_has_few_of_the_producers_that_a_queue_remembers() -> None:
    """All of it may be published again, and one that is forgotten by then would be doubled."""
    assert QUERY_UNITS * 10 < PRODUCERS_MAX


def test_progress_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    noted = tmp_path / "progress"
    units = units_of(ROOT, [file("a", (0, 9)), file("b", (10, 19))])
    first = ReplayProgress(noted, ReplayJob(ROOT, {}, noted))
    first.note(units[0], 10)
    with noted.open("a") as torn:
        torn.write('{"unit": "half')
    again = ReplayProgress(noted, ReplayJob(ROOT, {}, noted, resume=True))
    assert (again.producer, again.done) == (first.producer, {units[0].key})
    again.note(units[1], 10)
    assert [json.loads(line).get("rows") for line in noted.read_text().splitlines()] == [
        None,
        10,
        10,
    ]


@pytest.mark.parametrize("killed", [False, True])
def test_progress_survives_a_power_cut_before_anything_is_published(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next replay is another producer, and its rows are no repeats."""
    noted = tmp_path / "of" / "orders" / "progress"
    if killed:
        ReplayProgress(noted, ReplayJob(ROOT, {}, noted))
    # What was synced before this doesn't count.
    synced = Synced(monkeypatch)
    progress = ReplayProgress(noted, ReplayJob(ROOT, {}, noted, resume=killed))
    assert synced.lacks(noted, tmp_path) == []
    progress.units([file("a", (0, 9))])
    assert synced.lacks(noted, tmp_path) == []


def test_a_full_disk_leaves_the_progress_as_it_was(tmp_path: Path) -> None:
    """So does a death at that time. A new producer's rows would be no repeats for the broker."""
    noted = tmp_path / "progress"
    [unit] = units_of(ROOT, [file("a", (0, 9))])
    first = ReplayProgress(noted, ReplayJob(ROOT, {}, noted))
    first.note(unit, 10)
    whole = noted.read_bytes()
    noted.write_bytes(whole + b'{"unit": "half')
    with no_space_behind(10):
        resumed = ReplayProgress(noted, ReplayJob(ROOT, {}, noted, resume=True))
    assert (resumed.producer, resumed.done) == (first.producer, {unit.key})
    assert noted.read_bytes() == whole


def test_a_table_that_has_grown_has_the_units_of_before(tmp_path: Path) -> None:
    """Positions of two queues overlap, so a new file would join a unit: with another name, the
    rows that are in the queue already would be no repeats."""
    noted = tmp_path / "progress"
    job = ReplayJob(ROOT, {}, noted, resume=True)
    noted.touch()
    files = [file("a", (0, 60)), file("b", (50, 70)), file("c", (80, 90))]
    first = ReplayProgress(noted, job)
    before = first.units(files)
    assert [[path.name for path in unit.files] for unit in before] == [["a", "b"], ["c"]]
    first.note(before[0], 20)
    # The second one is on its way when this replay dies.
    grown = [*files, file("d", (75, 85)), file("e", (86, 99))]
    for _ in range(2):
        again = ReplayProgress(noted, job)
        units = again.units(grown)
        assert units[:2] == before
        assert [[path.name for path in unit.files] for unit in units[2:]] == [["d"], ["e"]]
        assert again.done == {before[0].key}


def test_a_table_whose_files_were_replaced_is_refused(tmp_path: Path) -> None:
    """`OPTIMIZE` makes other files of the same rows."""
    noted = tmp_path / "progress"
    job = ReplayJob(ROOT, {}, noted, resume=True)
    noted.touch()
    ReplayProgress(noted, job).units([file("a", (0, 9)), file("b", (10, 19))])
    with pytest.raises(JobError, match=r"has no file a any more.*published twice"):
        ReplayProgress(noted, job).units([file("compacted", (0, 19))])


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("other", [{"rows": 11}, {"size": 101}])
def test_a_file_that_was_written_anew_is_refused(
    is_done: bool, other: dict[str, int], tmp_path: Path
) -> None:
    """Its rows have the numbers of those that were published: the broker would trim them."""
    noted = tmp_path / "progress"
    first = ReplayProgress(noted, ReplayJob(ROOT, {}, noted))
    _, unit = first.units([file("a", (0, 9)), file("b", (10, 19))])
    if is_done:
        first.note(unit, 10)
    again = ReplayProgress(noted, ReplayJob(ROOT, {}, noted, resume=True))
    with pytest.raises(JobError, match=r"/lake/b has .* be lost"):
        again.units([file("a", (0, 9)), file("b", (10, 19), **other)])
    assert len(again.units([file("a", (0, 9)), file("b", (10, 19))])) == 2


def test_a_progress_file_that_is_not_there_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its name is mistyped: a new replay would publish all rows a second time."""
    noted = tmp_path / "folder" / "oders"
    with pytest.raises(JobError, match=r"oders: no such progress file.*without --resume"):
        ReplayProgress(noted, ReplayJob(ROOT, {}, noted, resume=True))
    assert not noted.parent.exists()


def test_of_two_replays_that_begin_at_once_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins after this one has seen no file."""
    noted = tmp_path / "progress"
    job = ReplayJob(ROOT, {}, noted)
    other: list[ReplayProgress] = []

    def begin_other(_folder: Path) -> None:
        monkeypatch.undo()
        other.append(ReplayProgress(noted, job))

    monkeypatch.setattr("ringmq_pipeline.jobs.replay.begin_folder", begin_other)
    with pytest.raises(JobError, match="is there already"):
        ReplayProgress(noted, job)
    [line] = noted.read_text().splitlines()
    assert json.loads(line)["producer"] == other[0].producer


def test_an_empty_progress_file_has_published_nothing(tmp_path: Path) -> None:
    """As a death before its first line leaves it: resumed, the replay begins."""
    noted = tmp_path / "progress"
    noted.touch()
    with pytest.raises(JobError, match="--resume"):
        ReplayProgress(noted, ReplayJob(ROOT, {}, noted))
    resumed = ReplayJob(ROOT, {}, noted, resume=True)
    assert ReplayProgress(noted, resumed).producer == ReplayProgress(noted, resumed).producer


@pytest.mark.parametrize(
    ("junk", "line"),
    [
        ("hello\nworld\n", 1),
        ("5\n", 1),
        ("[]\n", 1),
        ("\n", 1),
        ('{"job": {}}\n', 1),
        ('{"producer": "a"}\n', 1),
        ('{"job": {"sour', 1),
        ("\udcff\udcfe\n", 1),
        ("WHOLE\nhello\n", 2),
        ("WHOLE\n7\n", 2),
        ('WHOLE\n{"unit": []}\n', 2),
        ('WHOLE\n{"unit": "a"}\n{}\n', 3),
        ('WHOLE\n{"plan": [["a"]]}\n', 2),
        ('WHOLE\n{"plan": 7}\n', 2),
    ],
)
def test_junk_in_a_progress_file_is_an_error_that_names_it(
    junk: str, line: int, tmp_path: Path
) -> None:
    noted = tmp_path / "progress"
    ReplayProgress(noted, ReplayJob(ROOT, {}, noted))
    whole = junk.replace("WHOLE", noted.read_text().strip())
    noted.write_text(whole, errors="surrogateescape")
    expected = "progress is no replay's progress" if line == 1 else f"progress: line {line} "
    with pytest.raises(JobError, match=expected):
        ReplayProgress(noted, ReplayJob(ROOT, {}, noted, resume=True))
    assert noted.read_text(errors="surrogateescape") == whole


def test_of_two_that_go_on_with_one_progress_file_one_is_refused(tmp_path: Path) -> None:
    """Each would plan the table's new files as it saw them, and publish a row under two numbers."""
    lake, noted = tmp_path / "lake", tmp_path / "new" / "progress"
    lake.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"body": [b"x"]}), lake / "a.parquet")
    spark: Any = None
    first = ReplayProgress(noted, ReplayJob(lake, {}, noted))
    with locked(tmp_path / "new" / "progress.lock"):
        for resume in (True, False):
            with pytest.raises(JobError, match=r"progress\.lock: another process has the replay's"):
                replay(
                    spark, ReplayJob(lake, {}, noted, resume=resume), show=lambda tally, units: None
                )
    # Nothing is planned.
    assert len(noted.read_text().splitlines()) == 1
    assert first.producer in noted.read_text()


@contextmanager
def no_space_behind(size: int) -> Iterator[None]:
    """No file grows beyond it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_progress_of_other_rows_is_refused(tmp_path: Path) -> None:
    """The same numbers would mean other rows, and the broker would trim these."""
    noted = tmp_path / "progress"
    ReplayProgress(noted, ReplayJob(ROOT, {"queue": "a"}, noted))
    with pytest.raises(JobError, match="--resume"):
        ReplayProgress(noted, ReplayJob(ROOT, {"queue": "a"}, noted))
    for other in (
        ReplayJob(ROOT, {"queue": "b"}, noted, resume=True),
        ReplayJob(ROOT, {"queue": "a"}, noted, where="true", resume=True),
        ReplayJob(ROOT, {"queue": "a"}, noted, producer="other", resume=True),
    ):
        with pytest.raises(JobError, match="another replay"):
            ReplayProgress(noted, other)


def test_a_replay_may_go_on_faster(tmp_path: Path) -> None:
    noted = tmp_path / "progress"
    slow = ReplayJob(ROOT, {"queue": "a", "maxRatePerTask": "10"}, noted)
    producer = ReplayProgress(noted, slow).producer
    for sink in ({"queue": "a"}, {"queue": "a", "confirmwindow": "5", "requestTimeout": "9s"}):
        again = ReplayProgress(noted, ReplayJob(ROOT, sink, noted, resume=True))
        assert again.producer == producer


@pytest.mark.parametrize(
    ("rows", "ordered"),
    [
        ([("a", 1, 5)], True),
        ([("a", 1, 5), ("a", 1, 6), ("a", 1, 9)], True),
        ([("a", 1, 5), ("a", 1, 9), ("a", 1, 6)], False),
        ([("a", 1, 5), ("a", 1, 5)], False),
        ([("a", 1, 5), ("b", 1, 6)], False),
        ([("a", 1, 5), ("a", 2, 6)], False),
        ([("a", 1, None), ("a", 1, 6)], False),
        ([("a", None, 5), ("a", None, 6)], False),
    ],
)
def test_only_a_file_of_one_queue_whose_positions_grow_is_in_order(
    tmp_path: Path, rows: list[tuple[str, int | None, int | None]], ordered: bool
) -> None:
    names = ("queue", "epoch", "position")
    kinds = (pyarrow.string(), pyarrow.int64(), pyarrow.int64())
    columns = [
        pyarrow.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    pyarrow.parquet.write_table(pyarrow.table(columns, names), tmp_path / "file", row_group_size=1)
    assert is_ordered(tmp_path / "file") is ordered
