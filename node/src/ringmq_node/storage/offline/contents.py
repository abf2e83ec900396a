"""Which queues and message stores a data directory has, and what else lies about in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.ops import Outline, Remove
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.errors import StoreError, UnsupportedFormatError
from ringmq_node.storage.format import journal_records
from ringmq_node.storage.format.formats import JOURNAL, QUEUE_LABEL, QUEUE_NAME, STORE_META, Format
from ringmq_node.storage.format.queue_folder import BAD_SUFFIX, CURRENT_JOURNAL, NEW_SUFFIX
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import Header, RecordKind, owner_of
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.format.texts import decode_texts
from ringmq_node.storage.messages.files import SUFFIX as BODIES_SUFFIX
from ringmq_node.storage.messages.files import parse_name
from ringmq_node.storage.offline.disk import Names, ReadOnlyDisk
from ringmq_node.storage.offline.faults import Findings
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import Recovered, recover

PERSISTENT_NAME = "persistent"
TRANSIENT_NAME = "transient"

# More than any of these files is long.
_TEXTS_BYTES_MAX = 1 << 18
_QUEUE_FILE = re.compile(r"journal\.jif|(0|[1-9][0-9]{0,14})\.(jif|idx)")
_NAMES = frozenset({folders.NAME_NAME, folders.LABEL_NAME})
# Of the node, beside the store.
_OTHER_NAMES = frozenset({folders.LOCK_NAME, folders.META_NAME, "identity"})


class NotADataDirectoryError(StoreError):
    """There is nothing in this directory that a node would have written."""


class UnreadableQueueError(StoreError):
    """A queue's files can't be made sense of, or not be read; the text says which and why."""


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """`name`, by which the store knows it, is None where it is lost; `label`, its name for
    people, where there is none. `sizes` are those of its regular files."""

    path: Path
    name: str | None
    label: str | None
    sizes: dict[str, int]


class DataDirectory:
    """What is in `root`. Made inside `open_offline`."""

    def __init__(self, root: Path, disk: ReadOnlyDisk) -> None:
        """Reads names only. Raises `NotADataDirectoryError`, `OSError`."""
        self.root = root
        self.disk = disk
        self.findings = Findings(root)
        self.cluster: str | None = None
        self.node: str | None = None
        names = disk.names(root)
        known = {folders.QUEUES_NAME, folders.MESSAGES_NAME}
        if folders.META_NAME not in names.files and not known & {*names.folders}:
            raise NotADataDirectoryError(
                f"{root} is not a node's data directory: it has no {folders.META_NAME}"
            )
        self._look_around(names, known)
        self._read_meta(names)
        self.queues = [*self._queues()]

    @property
    def persistent(self) -> Path:
        return self.root / folders.MESSAGES_NAME / PERSISTENT_NAME

    @property
    def transient(self) -> Path:
        return self.root / folders.MESSAGES_NAME / TRANSIENT_NAME

    def store_files(self, store: Path) -> dict[str, int]:
        """Names and sizes of a message store's files."""
        return {name: size for name, size in self.disk.list(store).items() if parse_name(name)}

    # -- looking around

    def _look_around(self, names: Names, known: set[str]) -> None:
        root = self.root
        for name in sorted({*names.files} - _OTHER_NAMES) + names.others:
            self.findings.note(root / name, _leftover(name))
        for name in sorted({*names.folders} - known):
            self.findings.note(root / name, "not of the store")
        messages = self.disk.names(root / folders.MESSAGES_NAME)
        for name in (*messages.files, *messages.others):
            self.findings.note(root / folders.MESSAGES_NAME / name, _leftover(name))
        for store in (self.persistent, self.transient):
            inside = self.disk.names(store)
            for name in sorted(inside.files):
                if parse_name(name) is None:
                    self.findings.note(store / name, _leftover(name))
            self._irregular(store, inside, lambda name: parse_name(name) is not None)

    def _irregular(self, folder: Path, names: Names, is_ours: Callable[[str], object]) -> None:
        for name in (*names.folders, *names.others):
            if is_ours(name):
                self.findings.add(folder / name, 0, 0, "not a regular file")
            else:
                self.findings.note(folder / name, "not of the store")

    def _read_meta(self, names: Names) -> None:
        path = self.root / folders.META_NAME
        texts = self._texts(path, STORE_META, names.files.get(folders.META_NAME, 0))
        if texts is None:
            size = names.files.get(folders.META_NAME, 0)
            self.findings.add(path, 0, size, "what says whose directory it is can't be read")
        else:
            self.cluster, self.node = texts

    def _texts(self, path: Path, format: Format, size: int) -> tuple[str, str] | None:
        if not 0 < size <= _TEXTS_BYTES_MAX:
            return None
        try:
            return decode_texts(format, path, self.disk.read(path, 0, size))
        except UnicodeDecodeError:
            return None

    def _queues(self) -> Iterator[QueueFolder]:
        root = self.root / folders.QUEUES_NAME
        names = self.disk.names(root)
        for name in (*names.files, *names.others):
            self.findings.note(root / name, "not of the store")
        for name in sorted(names.folders):
            folder = root / name
            if name.endswith(folders.VOID_SUFFIXES):
                gone = name.endswith(folders.GONE_SUFFIX)
                what = "a deleted queue" if gone else "a transient queue"
                self.findings.note(folder, f"{what}, removed at the next start")
                continue
            found = self._queue(folder)
            if found is not None:
                yield found

    def _queue(self, folder: Path) -> QueueFolder | None:
        inside = self.disk.names(folder)
        files = inside.files
        for name in sorted(files):
            if name not in _NAMES and not _QUEUE_FILE.fullmatch(name):
                self.findings.note(folder / name, _leftover(name))
        ours = re.compile("|".join([_QUEUE_FILE.pattern, *map(re.escape, sorted(_NAMES))]))
        self._irregular(folder, inside, ours.fullmatch)
        path = folder / folders.NAME_NAME
        size = files.get(folders.NAME_NAME, 0)
        texts = self._texts(path, QUEUE_NAME, size)
        label = self._label(folder, files)
        if texts is not None:
            if label is not None:
                self.findings.labels[texts[0]] = label
            if folder.name != folders.folder_name(texts[0]):
                what = f"the folder of this queue is {folders.folder_name(texts[0])}"
                self.findings.add(path, 0, size, what, queue=texts[0])
            return QueueFolder(folder, texts[0], label, files)
        if files.keys() <= _NAMES:
            self.findings.note(folder, "a queue that was being made, removed at the next start")
            return None
        self.findings.add(path, 0, size, "the queue's name is lost")
        return QueueFolder(folder, None, label, files)

    def _label(self, folder: Path, files: dict[str, int]) -> str | None:
        """Nothing depends on it: what can't be read of it is only noted."""
        size = files.get(folders.LABEL_NAME)
        if size is None:
            return None
        path = folder / folders.LABEL_NAME
        try:
            texts = self._texts(path, QUEUE_LABEL, size)
        except UnsupportedFormatError:
            texts = None
        if texts is None:
            self.findings.note(path, "can't be read, written anew at the next start")
            return None
        return texts[0]

    # -- one queue

    def recover(self, queue: QueueFolder, refer: Callable[[RecordLocation], None]) -> Recovered:
        """What a start of the node would make of it; `refer` as in `recovery.recover`.

        Names in its folder are as recovery leaves them until `disk.forget`. Raises
        `UnreadableQueueError`; `PermissionError` and `FileNotFoundError` as they are.
        """
        try:
            return recover(self.disk, queue.path, refer)
        except (PermissionError, FileNotFoundError):
            raise
        except Exception as error:
            # Checksums keep accidents out. But a directory can be made, checksums and all, that
            # recovery stumbles over, and the report on the rest has to come all the same.
            text = str(error) or type(error).__name__
            raise UnreadableQueueError(f"queue can't be recovered: {text}") from error

    def entries(self, found: Recovered) -> Iterator[IndexEntry]:
        """All living entries of a queue, one segment in memory at a time. In no special order."""
        yield from found.index
        for delta in found.index.deltas.values():
            entries, _ = load_segment(
                self.disk, delta.segment, found.state.live, found.missing, found.cuts
            )
            yield from entries

    def transient_of(self, found: Recovered) -> int:
        """How many live transient messages there were, which recovery has dropped.

        By the newest journal alone: 0 if that is unreadable.
        """
        journal = found.current or (found.sealed[-1] if found.sealed else None)
        if journal is None:
            return 0
        transient = RangeSet()
        loaded = False

        def visit(header: Header, payload: bytes) -> None:
            nonlocal loaded
            if header.kind == RecordKind.CHECKPOINT:
                if not loaded:
                    loaded = True
                    state = journal_records.decode_checkpoint(header, payload).state
                    transient.update(state.transient)
                return
            op = journal_records.decode(header, payload, journal.number).op
            if isinstance(op, Outline) and op.transient:
                transient.add(op.first_position, op.last_position)
            elif isinstance(op, Remove):
                transient.subtract(op.ranges)

        path = journal.path

        def read(offset: int, size: int) -> bytes:
            return self.disk.read(path, offset, size)

        RecordFile(str(path), JOURNAL, journal.end, read, owner_of(path.parent)).scan(visit)
        return len(transient)


def _leftover(name: str) -> str:
    if name.endswith(NEW_SUFFIX):
        return "half made, removed at the next start"
    if name.endswith(BAD_SUFFIX):
        return "set aside by an earlier start, because it could not be read"
    return "not of the store"


def is_journal(name: str) -> bool:
    return name == CURRENT_JOURNAL or bool(_QUEUE_FILE.fullmatch(name) and name.endswith(".jif"))


def is_segment(name: str) -> bool:
    return bool(_QUEUE_FILE.fullmatch(name) and name.endswith(".idx"))


def is_bodies(name: str) -> bool:
    return parse_name(name) is not None and name.endswith(BODIES_SUFFIX)
