"""The log of a Delta table, made to survive a power cut: delta-rs syncs nothing.

A checkpoint stands for all commits before it. `_last_checkpoint` names it, and a reader that finds
this name but not the whole checkpoint refuses the table; behind a checkpoint, old commits are
deleted. So delta-rs may make none with its commits. They are made here, out of links to the log, in
a folder beside it, and take their place one after the other, each synced before the next:

    1  N.checkpoint.parquet
    2  _last_checkpoint, which names it
    3  commits go that are older than the table keeps them (30 days, if it says nothing)
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ringmq_pipeline.sinks.batches import DELTA_LOG, make_durable

log = logging.getLogger(__name__)

HINT: Final = "_last_checkpoint"
# Readers pass over a folder of this name in a table.
SCRATCH: Final = "_checkpointing"
# As delta-rs has it; a reader opens so many files at most.
CHECKPOINT_COMMITS: Final = 100
# What a process that was killed has left. Nobody takes so long.
LEFT_S: Final = 3600.0


class DeltaLog:
    """Of one table, whose other processes it knows nothing of."""

    def __init__(self, table: Path, reached: Callable[[str], None]) -> None:
        self._table = table
        self._log = table / DELTA_LOG
        self._reached = reached
        # The commits up to this one are on the disk, whoever has made them.
        self._durable_version = -1

    def make_durable(self, newest: int | None = None) -> None:
        """All commits that are there, and their names. `newest`: the last one, if that is known."""
        if newest is not None and newest <= self._durable_version:
            return
        new = self._following()
        if not new or max(new) < (newest or 0):
            new = self._behind()
        if not new:
            return
        for file in new.values():
            # Another process may delete it, as old.
            with suppress(FileNotFoundError):
                make_durable([file])
        make_durable([self._log, self._table])
        self._durable_version = max(new)

    def _following(self) -> dict[int, Path]:
        """The new commits by version, as far as they have no gap: nobody has to look through a
        month of old ones for the next. Only old ones that are deleted leave gaps."""
        if self._durable_version < 0:
            return {}
        following = ((n, self._commit(n)) for n in count(self._durable_version + 1))
        return dict(takewhile(lambda each: each[1].exists(), following))

    def _behind(self) -> dict[int, Path]:
        """The same, found by a look at all."""
        return {
            version: file
            for version, file in self._versions()
            if file.suffix == ".json" and version > self._durable_version
        }

    def _commit(self, version: int) -> Path:
        return self._log / f"{version:020}.json"

    def checkpoint(self) -> None:
        """Makes one, if there are so many commits behind the newest that it's worth it. All
        commits have to be durable. One that fails is no fault of a batch, so it's logged."""
        newest = self._newest_checkpoint()
        if self._durable_version - newest < CHECKPOINT_COMMITS:
            return
        try:
            with self._scratch() as scratch:
                self._put(self._made(scratch, newest), scratch / DELTA_LOG / HINT)
            DeltaTable(self._table).cleanup_metadata()
        except (OSError, DeltaError) as error:
            log.warning("%s: no checkpoint behind version %d: %s", self._table, newest, error)

    def _newest_checkpoint(self) -> int:
        """Its version; -1: there is none."""
        try:
            return int(json.loads((self._log / HINT).read_text())["version"])
        except FileNotFoundError:
            return -1
        except (ValueError, TypeError, KeyError, OverflowError):
            # A power cut can leave it without its bytes, if another program has written it. Readers
            # then look for checkpoints by their names, and so does whoever makes the next one:
            # with -1, it has links to all that is in the log.
            return -1

    def _versions(self) -> Iterator[tuple[int, Path]]:
        """Commits and checkpoints."""
        for file in self._log.glob("*"):
            version = file.name.partition(".")[0]
            if version.isdigit():
                yield int(version), file

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        above = self._table / SCRATCH
        for left in above.glob("*"):
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left)
        scratch = above / uuid.uuid4().hex
        (scratch / DELTA_LOG).mkdir(parents=True)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch)

    def _made(self, scratch: Path, newest: int) -> list[Path]:
        """The files of a checkpoint of a table that has this one's log, from `newest` on."""
        its = scratch / DELTA_LOG
        if newest >= 0:
            shutil.copy(self._log / HINT, its / HINT)
        for version, file in self._versions():
            if version >= newest:
                os.link(file, its / file.name)
        before = set(its.iterdir())
        DeltaTable(scratch).create_checkpoint()
        return [file for file in its.iterdir() if file not in before and file.name != HINT]

    def _put(self, checkpoint: list[Path], hint: Path) -> None:
        for files in (checkpoint, [hint]):
            make_durable(files)
            for file in files:
                file.rename(self._log / file.name)
            make_durable([self._log])
            self._reached("hinted" if files == [hint] else "checkpointed")
