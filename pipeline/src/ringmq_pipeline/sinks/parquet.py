"""A folder of Parquet files with one manifest for each batch: readers take the files it names.

    _staging/QUERY/BATCH-RANDOM/     a try that isn't done; nobody reads it
    data/QUERY/BATCH/*.parquet       renamed there once, as a whole, with `_ranges.json`
    _manifest/QUERY/BATCH.json       linked there once: from now on the batch is in the table

A folder in `data` without a manifest is whole, and its batch will be tried again: the next try
takes it as it is, if its batch has the same ranges. So a reader that doesn't know of manifests may
be early by one batch, but never sees a row twice, or a file that can't be read. Nothing in `data`
is deleted or overwritten.

Of two checkpoints with the same messages one is refused. A link can't do that, as their manifests
have different names: so the last look at the table, the rename and the link are under a lock of the
table (`locks`). It costs a batch some microseconds, and if another one is there, its syncs of some
ten milliseconds; rows are written outside of it. It holds among the processes of one machine, and
of several if the file system carries `flock`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sinks.batches import (
    DELTA_LOG,
    SKIPPED,
    Committed,
    TableBatch,
    WriteFiles,
    WrittenFile,
    begin_folder,
    check_covered,
    folders_between,
    make_durable,
    new_ends,
    refuse_other_format,
    refuse_rows_in_table,
    write_whole,
    written_files,
)
from ringmq_pipeline.sinks.locks import locked

VERSION: Final = 1
STAGING: Final = "_staging"
MANIFESTS: Final = "_manifest"
# In `MANIFESTS`.
LOCK: Final = ".lock"
# In a batch's folder: what the batch was when its files were written.
RANGES: Final = "_ranges.json"


def committed_files(path: Path) -> list[Path]:
    """Of all batches, in the order of their numbers. Raises `JobError` for a manifest of another
    version."""
    found: list[Path] = []
    for query in sorted((path / MANIFESTS).glob("*")):
        for manifest in sorted(query.glob("*.json"), key=lambda each: int(each.stem)):
            found += [path / file["path"] for file in _read_manifest(manifest)["files"]]
    return found


def _read_manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    if found["version"] != VERSION:
        raise JobError(f"{path}: a manifest of version {found['version']}, this is {VERSION}")
    return found


class ParquetSink:
    """`reached` is called with each step's name when it is done; tests end there."""

    def __init__(self, path: Path, reached: Callable[[str], None] = lambda step: None) -> None:
        self._path = path.absolute()
        self._manifests = self._path / MANIFESTS
        self._reached = reached
        self._has_begun = False

    def commit(self, batch: TableBatch, write: WriteFiles) -> Committed:
        self._begin()
        manifest = self._manifests / batch.query / f"{batch.number}.json"
        if manifest.exists():
            check_covered(batch, self._ends())
            return SKIPPED
        folder = self._path / "data" / batch.query / str(batch.number)
        # None: a try before has renamed it. Another checkpoint may have brought its messages since.
        staged = None if folder.exists() else self._stage(batch, write)
        with locked(self._manifests / LOCK):
            # Meanwhile, another process may have begun.
            refuse_other_format(self._path, DELTA_LOG, "delta")
            ends = self._ends()
            if staged is None:
                self._check_plan(folder, batch)
            refuse_rows_in_table(self._path, batch, written_files(staged or folder), ends)
            if staged is not None:
                self._rename(staged, folder)
            make_durable(folders_between(self._path, folder.parent))
            files = written_files(folder)
            self._publish(manifest, batch, files, ends | new_ends(batch, ends))
        self._reached("committed")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path / STAGING / batch.query)
        return Committed(
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.bytes for file in files),
        )

    def _begin(self) -> None:
        refuse_other_format(self._path, DELTA_LOG, "delta")
        if self._has_begun:
            return
        begin_folder(self._path)
        # Before there are any files: a reader that finds no manifests takes a folder for one of
        # plain Parquet, and would read what isn't committed.
        self._manifests.mkdir(exist_ok=True)
        make_durable([self._path])
        self._has_begun = True

    def _check_plan(self, folder: Path, batch: TableBatch) -> None:
        if json.loads((folder / RANGES).read_text()) != batch.describe():
            raise JobError(
                f"{folder}: a try that wasn't finished has left another plan of batch "
                f"{batch.number} there: the checkpoint was restored, or has lost its newest files; "
                "begin another one"
            )

    def _rename(self, staged: Path, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            staged.rename(folder)
        except OSError as error:
            raise JobError(f"{folder}: another process writes this batch: {error}") from error
        self._reached("renamed")

    def _stage(self, batch: TableBatch, write: WriteFiles) -> Path:
        name = f"{batch.number}-{uuid.uuid4().hex}"
        staged = self._path / STAGING / batch.query / name
        staged.parent.mkdir(parents=True, exist_ok=True)
        files = write_whole(write, staged)
        self._reached("written")
        ranges = staged / RANGES
        ranges.write_text(json.dumps(batch.describe()))
        make_durable([*(file.path for file in files), ranges, staged])
        self._reached("durable")
        return staged

    def _publish(
        self, manifest: Path, batch: TableBatch, files: list[WrittenFile], ends: dict[str, int]
    ) -> None:
        text = json.dumps(
            {
                "version": VERSION,
                "query": batch.query,
                "batch": batch.number,
                "ranges": batch.describe(),
                "files": [
                    {
                        "path": file.path.relative_to(self._path).as_posix(),
                        "rows": file.rows,
                        "bytes": file.bytes,
                    }
                    for file in files
                ],
                "ends": ends,
            },
            indent=1,
        )
        manifest.parent.mkdir(parents=True, exist_ok=True)
        draft = manifest.with_name(f".{manifest.name}-{uuid.uuid4().hex}")
        draft.write_text(text)
        make_durable([draft])
        self._reached("drafted")
        try:
            # A link, unlike a rename, never takes the place of another one's.
            os.link(draft, manifest)
            self._reached("linked")
        except FileExistsError as error:
            raise JobError(f"{manifest}: another process has committed this batch") from error
        finally:
            draft.unlink()
        make_durable(folders_between(self._path, manifest.parent))

    def _ends(self) -> dict[str, int]:
        """How far the table has each numbering's messages: the newest manifest of each query has
        this for all that came before."""
        queries = [query for query in self._manifests.glob("*") if query.is_dir()]
        # Whoever has linked one may have been killed before its name was on the disk, and what is
        # said of it here is taken for good.
        make_durable([self._path, self._manifests, *queries])
        found: dict[str, int] = {}
        for query in queries:
            manifests = [*query.glob("*.json")]
            if not manifests:
                continue
            newest = max(manifests, key=lambda each: int(each.stem))
            for key, end in _read_manifest(newest)["ends"].items():
                found[key] = max(end, found.get(key, 0))
        return found
