"""The files that a replay takes for a table's rows, and the units that it publishes of them.

No Spark here. What can't be read is a `JobError` that names the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sink_options import PUBLISHED
from ringmq_pipeline.sinks.batches import (
    DELTA_LOG,
    POSITION,
    QUEUE_COLUMNS,
    WrittenFile,
    file_of,
)
from ringmq_pipeline.sinks.parquet import MANIFESTS, STAGING, committed_files

ORDER: Final = (*QUEUE_COLUMNS, POSITION)
# A folder with one of these is a table, which says itself which of its files count.
TABLE_MARKS: Final = frozenset({DELTA_LOG, MANIFESTS, STAGING})


@dataclass(frozen=True, slots=True)
class ReplayUnit:
    """`key` names the files: they never change. `rows` and `bytes` are all of the files'."""

    key: str
    files: tuple[Path, ...]
    rows: int
    bytes: int


# --- files ---


def files_of_table(path: Path) -> list[Path]:
    """Of a Delta table, of a table with manifests, or of a folder or a file of Parquet. Raises
    `JobError` for a table whose files alone aren't its rows."""
    if (path / DELTA_LOG).is_dir():
        found = _files_of_delta(path)
    # Before its first manifest, the sink has a folder for what isn't committed.
    elif (path / MANIFESTS).is_dir() or (path / STAGING).is_dir():
        found = _files_of_manifests(path)
    else:
        found = [path] if path.is_file() else _files_of_folder(path)
        if not found:
            raise JobError(f"{path}: no table, and no Parquet files")
    if hidden := next((file for file in found if _is_hidden(file.name)), None):
        # Silently, if it is told the columns.
        raise JobError(f"{hidden}: Spark skips files whose names begin with `_` or `.`: rename it")
    return found


def _is_hidden(name: str) -> bool:
    """As Spark has it: of files that somebody still writes. `_a=1` is a column's value."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _files_of_delta(path: Path) -> list[Path]:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(path)
        features = table.protocol().reader_features or []
        # Not all tables that may have such rows have some.
        may_lack = "deletionVectors" in features
        lacks_rows = may_lack and next(iter(table.deletion_vectors()), None) is not None
        partitions = table.metadata().partition_columns
        # Not `file_uris`, which encodes what is above the table, and nothing below.
        names = table.get_add_actions()["path"].to_pylist()
    except DeltaError as error:
        raise JobError(f"{path / DELTA_LOG} can't be read: {_first_line(error)}") from error
    if lacks_rows:
        raise JobError(
            f"{path}: the table has rows that are deleted, and still in its files (deletion "
            "vectors): rewrite it without them"
        )
    if lacking := {*PUBLISHED, *ORDER}.intersection(partitions):
        columns = ", ".join(sorted(lacking))
        raise JobError(f"{path}: the table is partitioned by {columns}, which its files lack")
    return sorted(path / unquote(name) for name in names)


def _files_of_manifests(path: Path) -> list[Path]:
    try:
        return committed_files(path)
    except (ValueError, KeyError, TypeError) as error:
        broken = _broken_manifest(path)
        raise JobError(f"{broken} can't be read as a manifest: {error!r}") from error


def _broken_manifest(path: Path) -> Path:
    for manifest in sorted((path / MANIFESTS).glob("*/*.json")):
        try:
            if "files" in json.loads(manifest.read_bytes()):
                continue
        except (ValueError, TypeError):
            pass
        return manifest
    return path / MANIFESTS


def _files_of_folder(path: Path) -> list[Path]:
    """Without those that Spark takes for hidden, or that are in a hidden folder."""
    found: list[Path] = []
    for folder, below, files in os.walk(path, onerror=_raise):
        if Path(folder) != path and not TABLE_MARKS.isdisjoint(below):
            raise JobError(
                f"{folder} is a table within {path}: only the table knows which of its files "
                "count; replay it by itself"
            )
        below[:] = [name for name in below if not _is_hidden(name)]
        names = (name for name in files if name.endswith(".parquet") and not _is_hidden(name))
        found += [Path(folder, name) for name in names]
    return sorted(found)


def _raise(error: OSError) -> None:
    """A folder that can't be listed has rows that nobody would miss."""
    raise error


def file_to_replay(path: Path) -> WrittenFile:
    with _readable(path):
        found = file_of(path)
    if not all(isinstance(each, int) for each in found.positions or ()):
        raise _no_positions(path)
    return found


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    # pyarrow's own errors have no name of a file, and those of garbled bytes are `OSError`s.
    except (pyarrow.ArrowException, OSError) as error:
        raise JobError(f"{path} can't be read as Parquet: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """delta-rs adds its own stack."""
    return str(error).strip().partition("\n")[0]


def _no_positions(path: Path) -> JobError:
    return JobError(
        f"{path}: the column `{POSITION}` says where a message was in its queue, and has to be of "
        "whole numbers: drop or rename it"
    )


# --- units ---


def units_of(root: Path, files: Sequence[WrittenFile]) -> list[ReplayUnit]:
    """In the order of their positions. Files without positions stay as they are listed, each one
    by itself."""
    groups: list[list[WrittenFile]] = []
    top = -1
    ordered = [each for each in files if each.positions is None]
    ordered += sorted(
        (each for each in files if each.positions is not None),
        key=lambda each: each.positions or (),
    )
    for file in ordered:
        if file.positions is not None and groups and file.positions[0] <= top:
            groups[-1].append(file)
        else:
            groups.append([file])
        if file.positions is not None:
            top = max(top, file.positions[1])
    return [unit_of(root, group) for group in groups]


def queries_of(
    units: Sequence[ReplayUnit], *, units_max: int, rows_max: int, bytes_max: int
) -> list[list[ReplayUnit]]:
    """Consecutive units for one query each: one at least, or so many with so much together, whose
    files have the same columns."""
    found: list[list[ReplayUnit]] = []
    rows = size = 0
    columns: object = None
    for unit in units:
        has = [pyarrow.parquet.read_schema(file) for file in unit.files]
        rows, size = rows + unit.rows, size + unit.bytes
        fits = rows <= rows_max and size <= bytes_max
        joins = bool(found) and fits and len(found[-1]) < units_max
        if joins and all(each.equals(columns, check_metadata=True) for each in has):
            found[-1].append(unit)
        else:
            found.append([unit])
            rows, size, columns = unit.rows, unit.bytes, has[-1]
    return found


def is_ordered(path: Path) -> bool:
    """Whether the file's rows, which have the columns of `ORDER`, are of one queue and epoch, and
    their positions grow. Only these columns are read."""
    with _readable(path):
        columns = pyarrow.parquet.read_table(path, columns=[*ORDER])
        values = [columns[name].unique() for name in QUEUE_COLUMNS]
    if not pyarrow.types.is_integer(columns[POSITION].type):
        raise _no_positions(path)
    if any(len(each) > 1 or each.null_count for each in values):
        return False
    positions: Any = columns[POSITION]
    if positions.null_count:
        return False
    grows = pyarrow.compute.greater(positions[1:], positions[:-1])
    # None: it has one row.
    return pyarrow.compute.all(grows).as_py() is not False


def unit_of(root: Path, files: Sequence[WrittenFile]) -> ReplayUnit:
    listed = tuple(sorted(file.path for file in files))
    names = "\n".join(os.path.relpath(file, root) for file in listed)
    return ReplayUnit(
        key=hashlib.sha256(names.encode()).hexdigest()[:32],
        files=listed,
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
    )
