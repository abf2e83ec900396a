"""The source `ringmq_store` without a JVM: its partitions and rows, and damage of any kind."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from node.tests.storage.offline.directory import SUFFIXES, bodies, flip, headers, queue_file, tree
from node.tests.storage.offline.test_random import damage

from pyspark_ringmq_store.options import parse
from pyspark_ringmq_store.planning import StoreChangedError, StorePartition, StoreReader
from ringmq_node.storage.format.records import RecordKind
from ringmq_pipeline.option_values import OptionError

ROUNDS = 1000 if os.environ.get("RINGMQ_EXHAUSTIVE") else 12


def read(*stores: Path | str, **options: str) -> list[dict[str, Any]]:
    reader = StoreReader(parse({"stores": ",".join(map(str, stores))} | options))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def expected() -> dict[tuple[str, int], bytes]:
    """As `make` leaves the queues."""
    found = {
        ("small", at + index): body
        for at in range(0, 1000, 50)
        for index, body in enumerate(bodies(50, 20, at))
        if not (100 <= at + index <= 149 or 300 <= at + index <= 349)
    }
    for at in range(0, 600, 4):
        for index, body in enumerate(bodies(4, 900, at)):
            if (at + index - 4) % 16 >= 12 or at + index < 4:
                found["large", at + index] = found["copy", at + index] = body
    return found


@pytest.mark.parametrize("tasks", ["1", "3", "12"])
def test_each_live_message_is_a_row_with_its_place(root: Path, tasks: str) -> None:
    before = tree(root)
    rows = read(f"a={root}", minPartitions=tasks)
    assert {row["status"] for row in rows} == {"ok"}
    assert {(row["queue"], row["position"]): row["body"] for row in rows} == expected()
    assert len(rows) == len(expected())
    for row in rows:
        assert row["node"] == "a"
        assert row["body_crc32"] == zlib.crc32(row["body"])
        assert (root / row["file"]).stat().st_size > row["file_offset"]
    assert tree(root) == before


def test_a_queue_that_goes_before_its_task_is_an_error(root: Path) -> None:
    """A task read the others, and said nothing."""
    reader = StoreReader(parse({"stores": f"a={root}", "minPartitions": "1"}))
    [partition] = reader.partitions()
    assert isinstance(partition, StorePartition)
    gone = partition.folders[0]
    [folder] = [path for path in root.rglob(gone) if path.is_dir()]
    shutil.rmtree(folder)
    with pytest.raises(StoreChangedError, match=f"the folder {gone} of a queue .* is gone"):
        list(reader.read(partition))


def test_bodies_are_left_out_or_cut(root: Path) -> None:
    plain = read(f"a={root}", payload="none", checksums="false", queues="small")
    assert len(plain) == 900
    assert {(row["body"], row["body_crc32"], row["body_size"]) for row in plain} == {
        (None, None, 20)
    }
    heads = read(f"a={root}", payload="head:5", queues="small")
    wanted = expected()
    assert all(row["body"] == wanted["small", row["position"]][:5] for row in heads)


@pytest.mark.parametrize("tasks", ["1", "3"])
def test_pieces_are_rows_that_count_the_messages(root: Path, tasks: str) -> None:
    pieces = read(f"a={root}", rows="pieces", minPartitions=tasks)
    found = {
        (row["queue"], position)
        for row in pieces
        for position in range(row["first"], row["last"] + 1)
    }
    assert found == set(expected())
    assert sum(row["rows"] for row in pieces) == len(found)
    assert len(pieces) < len(found)
    assert sum(row["body_bytes"] for row in pieces) == sum(map(len, expected().values()))
    assert all(row["rows"] == row["last"] - row["first"] + 1 for row in pieces)


def test_queues_are_rows_with_how_far_they_are(root: Path) -> None:
    rows = {row["queue"]: row for row in read(f"a={root}", rows="queues")}
    assert {name: row["next_position"] for name, row in rows.items()} == {
        "small": 1000,
        "large": 603,
        "copy": 600,
    }
    live = Counter(queue for queue, _ in expected())
    assert {name: row["live"] for name, row in rows.items()} == live


def test_a_damaged_body_is_a_finding_with_file_and_offset(root: Path) -> None:
    [segment] = queue_file(root, "small", "x").parent.glob("*.idx")
    record = next(each for each in headers(segment) if each.kind == RecordKind.ENTRY)
    flip(segment, record.end - 1)
    rows = read(f"a={root}", queues="small")
    bad = [row for row in rows if row["status"] == "damaged"]
    assert bad
    assert {row["file_offset"] for row in bad} == {record.offset}
    assert {row["file"] for row in bad} == {str(segment.relative_to(root))}
    assert Counter(row["status"] for row in rows)["ok"] == 900 - len(bad)


def test_a_queue_that_no_directory_has_is_named(root: Path) -> None:
    with pytest.raises(OptionError, match="no directory has other"):
        read(f"a={root}", queues="other")


@pytest.mark.parametrize("rows", ["messages", "pieces", "queues"])
def test_a_directory_without_queues_has_no_rows(root: Path, rows: str) -> None:
    """Spark asserts that there is a partition."""
    for folder in (root / "queues").iterdir():
        shutil.rmtree(folder)
    reader = StoreReader(parse({"stores": f"a={root}", "rows": rows}))
    [partition] = reader.partitions()
    assert [row for batch in reader.read(partition) for row in batch.to_pylist()] == []


def test_no_damage_makes_an_exception_or_another_body(made: tuple[Path, Path], root: Path) -> None:
    """1 000 rounds with RINGMQ_EXHAUSTIVE=1."""
    rng = random.Random(10)
    wanted = expected()
    for _ in range(ROUNDS):
        paths = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES)
        path = rng.choice([each for each in paths if each.stat().st_size])
        before = path.read_bytes()
        damage(rng, path)
        for row in read(f"a={root}", minPartitions="1"):
            if row["status"] == "ok":
                assert row["body"] == wanted.get((row["queue"], row["position"]), row["body"])
        read(f"a={root}", rows="queues", minPartitions="1")
        path.write_bytes(before)
