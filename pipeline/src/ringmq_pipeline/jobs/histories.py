"""The histories of runs as a table: the lines that tests of whole clusters write of their clients.

    {"kind": "confirm", "at": 12.5, "queue": "q", "tag": "p1", "first": 20, "last": 29}

A row is a record. Its order in its run is (`split`, `line`): the file, the part of it that one task
reads, and the line there. Lines have to be in the order of time, as their writer notes them.

A run is a file, or all files below a folder `run=NAME`, in the order of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from os.path import commonpath, dirname
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyspark.sql import functions as f

from ringmq_pipeline.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The columns that the judgement reads. Those of `nemesis` and `whole` are none of them.
COLUMNS: Final = (
    "kind STRING, at DOUBLE, queue STRING, tag STRING, first BIGINT, last BIGINT, epoch BIGINT, "
    "master STRING, reason STRING, consumer STRING, stream BIGINT, position BIGINT, runs "
    "ARRAY<STRUCT<position: BIGINT, tag: STRING, number: BIGINT, count: BIGINT, "
    "redelivered: BOOLEAN>>, ranges ARRAY<ARRAY<BIGINT>>, ring ARRAY<STRING>, "
    "synchronised ARRAY<STRING>, state STRING"
)
# By its kind, the columns that a record must have, besides `kind` and `at`.
NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "publish": ("queue", "tag", "first", "last"),
    "confirm": ("queue", "tag", "first", "last"),
    "unknown": ("queue", "tag", "first", "last", "reason"),
    "deliver": ("queue", "consumer", "stream", "runs"),
    "garbled": ("queue", "consumer", "position"),
    "ack": ("queue", "consumer", "ranges"),
    "view": ("queue", "epoch", "ring", "synchronised", "state"),
    "drained": ("queue",),
    "nemesis": (),
    "whole": (),
}
# Of the numbers that order the records: a file may have 4 TiB, and a record 2^28 runs.
_SPLIT_BITS: Final = 42
_RUN_BITS: Final = 28
# `monotonically_increasing_id` has the partition above these.
_ROW_BITS: Final = 33
_UNREADABLE: Final = "unreadable"
# Spark lists a local file as `file:///a`, and names it beside its rows as `file:/a`.
_LOCAL: Final = ("^file:/+", "file:/")


def runs_of(files: Iterable[str]) -> list[tuple[str, str, int]]:
    """File, run, and the file's number in its run, of the paths that Spark lists."""
    ordered = sorted(re.sub(*_LOCAL, file) for file in files)
    top = commonpath([dirname(file) for file in ordered]) if ordered else ""
    counts: dict[str, int] = {}
    found = []
    for file in ordered:
        named = [part[4:] for part in file.split("/") if part.startswith("run=")]
        run = unquote(named[-1] if named else file[len(top) :].lstrip("/"))
        number = counts[run] = counts.get(run, -1) + 1
        found.append((file, run, number))
    return found


def read_histories(spark: SparkSession, paths: Sequence[str], form: str = "json") -> DataFrame:
    """`form`: json (lines) or parquet. `paths` may be files, folders, or patterns of them.

    A line that is no record is a row of the kind `unreadable`, with the line as its `reason`."""
    reader = spark.read.option("recursiveFileLookup", "true")
    if form == "json":
        reader = reader.schema(f"{COLUMNS}, {_UNREADABLE} STRING").option(
            "columnNameOfCorruptRecord", _UNREADABLE
        )
        read = reader.json([*paths])
    else:
        read = reader.schema(COLUMNS).parquet(*paths)
        read = read.withColumn(_UNREADABLE, f.lit(None).cast("string"))
    files = runs_of(read.inputFiles())
    if not files:
        raise JobError(f"{', '.join(paths)}: no files there")
    known = spark.createDataFrame(files, "file STRING, run STRING, number BIGINT")
    row = f.monotonically_increasing_id().bitwiseAND(f.lit((1 << _ROW_BITS) - 1))
    placed = read.select(
        "*",
        f.regexp_replace("_metadata.file_path", *_LOCAL).alias("file"),
        f.col("_metadata.file_block_start").alias("block_start"),
        f.shiftleft(row, _RUN_BITS).alias("line"),
    )
    # Else a file under another name would go unjudged.
    number = f.coalesce(
        "number", f.raise_error(f.concat(f.col("file"), f.lit(" wasn't there when the read began")))
    )
    split = f.shiftleft(number.cast("bigint"), _SPLIT_BITS) + f.col("block_start")
    whole = placed.join(f.broadcast(known), "file", "left").withColumn("split", split)
    return _checked(whole)


def _checked(records: DataFrame) -> DataFrame:
    sound = f.lit(False)
    for kind, needed in NEEDED.items():
        whole = f.col("kind") == kind
        for column in ("at", *needed):
            whole = whole & f.col(column).isNotNull()
        sound = sound | whole
    bad = f.col(_UNREADABLE).isNotNull() | ~f.coalesce(sound, f.lit(False))
    lacking = f.concat(f.lit("fields are missing: "), f.to_json(f.struct("kind", "at", "queue")))
    made: dict[str, Column] = {
        "kind": f.when(bad, _UNREADABLE).otherwise(f.col("kind")),
        "reason": f.when(bad, f.substring(f.coalesce(_UNREADABLE, lacking), 1, 200)).otherwise(
            f.col("reason")
        ),
        "epoch": f.coalesce("epoch", f.lit(0)),
        "master": f.coalesce("master", f.lit("")),
    }
    return records.withColumns(made).drop(_UNREADABLE, "file", "number", "block_start")
