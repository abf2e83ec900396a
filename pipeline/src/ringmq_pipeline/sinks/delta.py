"""A Delta table without Delta's jars: Spark writes the files, delta-rs commits them.

The commit has, in one step, the batch's files, its number under the query's id, and for each queue
the end of its range. delta-rs refuses a commit whose numbers have changed since the table was
read: so of two drivers that try the same batch, or batches of the same messages, one is refused. It
reads the table anew, and says what it finds there.

Nothing is ever deleted or overwritten. Each try writes to a folder of its own. The folder of a try
that ended before its commit is no part of the table; `DeltaTable.vacuum(full=True)` removes it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow.parquet
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sinks.batches import (
    POSITION,
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
    numbering_key,
    refuse_other_format,
    refuse_rows_in_table,
    write_whole,
)
from ringmq_pipeline.sinks.delta_log import DeltaLog
from ringmq_pipeline.sinks.parquet import MANIFESTS

# See `delta_log`: what they write is synced by nobody.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# Of a commit, for others of the same queues, or that create the table, may come in between. A lease
# keeps the former apart, so there are few.
TRIES: Final = 3


class DeltaSink:
    """`reached` is called with each step's name when it is done; tests end there."""

    def __init__(self, path: Path, reached: Callable[[str], None] = lambda step: None) -> None:
        self._path = path.absolute()
        _check_path(self._path)
        self._reached = reached
        self._has_begun = False
        self._log = DeltaLog(self._path, reached)

    def commit(self, batch: TableBatch, write: WriteFiles) -> Committed:
        refuse_other_format(self._path, MANIFESTS, "parquet")
        if not self._has_begun:
            begin_folder(self._path)
            self._has_begun = True
        table = self._table()
        if table is not None and _version(table, batch.query) >= batch.number:
            check_covered(batch, _ends(table, batch))
            return SKIPPED
        folder = self._path / "data" / batch.query / f"{batch.number}-{uuid.uuid4().hex}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        files = write_whole(write, folder)
        self._reached("written")
        if not files:
            # Holes alone. To try it again does no harm.
            return Committed()
        make_durable([*(file.path for file in files), *folders_between(self._path, folder)])
        self._reached("durable")
        self._add(table, batch, files)
        self._reached("committed")
        self._log.make_durable()
        self._log.checkpoint()
        return Committed(
            rows=sum(file.rows for file in files),
            files=len(files),
            bytes=sum(file.bytes for file in files),
        )

    def _table(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self._path)
        except TableNotFoundError:
            return None
        # Whoever has committed something may have been killed before it was on the disk, and what
        # is said of it here is taken for good.
        self._log.make_durable(table.version())
        return table

    def _create(self, files: Sequence[WrittenFile]) -> DeltaTable:
        """Or another process does meanwhile, which is as good."""
        failed: CommitFailedError | None = None
        try:
            DeltaTable.create(
                self._path,
                _schema(files),
                mode="ignore",
                # Tried again, it would be a second beginning behind another process's first.
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=NO_HOOKS,
            )
        except CommitFailedError as error:
            failed = error
        self._reached("created")
        # Manifests may have come just as well.
        refuse_other_format(self._path, MANIFESTS, "parquet")
        table = self._table()
        if table is None:
            raise JobError(f"{self._path}: the table isn't created: {failed}") from failed
        return table

    def _check(self, table: DeltaTable, batch: TableBatch, files: Sequence[WrittenFile]) -> None:
        schema = _schema(files)
        if table.schema() != schema:
            raise JobError(
                f"{self._path}: the table has the columns {_names(table.schema())}, and the rows "
                f"{_names(schema)}: other options need another table"
            )
        if _version(table, batch.query) >= batch.number:
            raise JobError(f"{self._path}: another process has committed batch {batch.number}")
        refuse_rows_in_table(self._path, batch, files, _ends(table, batch))

    def _add(
        self, table: DeltaTable | None, batch: TableBatch, files: Sequence[WrittenFile]
    ) -> None:
        """`table`: as it was when its batches were looked at; None: it wasn't there. Raises
        `JobError`."""
        for left in reversed(range(TRIES)):
            # The commit is refused if a number has changed since `table` was read, so it's that one
            # that is checked.
            table = table or self._create(files)
            self._check(table, batch, files)
            try:
                self._try_add(table, batch, files)
                return
            except CommitFailedError as error:
                if not left:
                    raise JobError(
                        f"{self._path}: batch {batch.number} isn't committed, as other processes "
                        f"have changed the table {TRIES} times meanwhile: {error}"
                    ) from error
            # To say what is there, or to go on if it's no part of this batch.
            table = self._table()

    def _try_add(self, table: DeltaTable, batch: TableBatch, files: Sequence[WrittenFile]) -> None:
        """Raises `CommitFailedError`."""
        numbers = [Transaction(batch.query, batch.number)]
        ends = new_ends(batch, _ends(table, batch))
        numbers += [Transaction(key, end) for key, end in ends.items()]
        table.create_write_transaction(
            [self._action(file) for file in files],
            "append",
            _schema(files),
            commit_properties=CommitProperties(
                app_transactions=numbers,
                custom_metadata={
                    "ringmq.query": batch.query,
                    "ringmq.batch": str(batch.number),
                    "ringmq.ranges": json.dumps(batch.describe()),
                },
            ),
            post_commithook_properties=NO_HOOKS,
        )

    def _action(self, file: WrittenFile) -> AddAction:
        statistics: dict[str, object] = {"numRecords": file.rows}
        if file.positions is not None:
            low, high = file.positions
            statistics |= {"minValues": {POSITION: low}, "maxValues": {POSITION: high}}
        return AddAction(
            quote(file.path.relative_to(self._path).as_posix()),
            file.bytes,
            {},
            int(time.time() * 1000),
            True,
            json.dumps(statistics),
        )


def _check_path(path: Path) -> None:
    """Raises `JobError`. Of the folder that symbolic links lead to, delta-rs makes a URL, and reads
    that as another one's: `a%20b` and `a\\b` as `a b` and `a/b`. It would write part of the log
    there, or none at all."""
    folder = str(path.resolve())
    if unquote(folder) != folder:
        fault = "a % before two hexadecimal digits"
    elif "\\" in folder:
        fault = "a backslash"
    elif any(character < " " or character == "\x7f" for character in folder):
        fault = "a control character"
    else:
        return
    raise JobError(
        f"{folder!a}: a Delta table can't be in a folder whose name has {fault}: choose "
        "another folder"
    )


def _version(table: DeltaTable, application: str) -> int:
    """-1: none yet."""
    found = table.transaction_version(application)
    return -1 if found is None else found


def _ends(table: DeltaTable, batch: TableBatch) -> dict[str, int]:
    """How far the table has the messages of the batch's queues."""
    keys = [numbering_key(each) for each in batch.ranges]
    return {key: _version(table, key) for key in keys}


def _schema(files: Sequence[WrittenFile]) -> Schema:
    return Schema.from_arrow(pyarrow.parquet.read_schema(files[0].path).remove_metadata())


def _names(schema: Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema.fields)
