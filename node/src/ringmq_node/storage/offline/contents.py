"""The queues and the message stores of a data directory, and all other files that lie in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ringmq_node.storage.commit_log import LOG_NAMES
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk import life
from ringmq_node.storage.errors import StoreError, UnsupportedFormatError
from ringmq_node.storage.format.formats import QUEUE_LABEL, QUEUE_NAME, STORE_META, Format
from ringmq_node.storage.format.queue_folder import BAD_SUFFIX, NEW_SUFFIX
from ringmq_node.storage.format.set_aside import DIRECTORY, name_of
from ringmq_node.storage.format.texts import decode_texts
from ringmq_node.storage.messages.files import parse_name
from ringmq_node.storage.offline.disk import Names, ReadOnlyDisk
from ringmq_node.storage.offline.faults import Findings
from ringmq_node.storage.offline.file_kinds import is_journal, is_segment
from ringmq_node.storage.offline.queues import QueueFolder
from ringmq_node.storage.redo import apply_logs

PERSISTENT_NAME = "persistent"
TRANSIENT_NAME = "transient"

# No file of texts is longer.
_TEXTS_BYTES_MAX = 1 << 18
_NAMES = folders.TEXT_NAMES
# Of the node, beside the store.
_OTHER_NAMES = frozenset({folders.LOCK_NAME, folders.META_NAME, life.LIFE_NAME, *LOG_NAMES})


class NotADataDirectoryError(StoreError):
    """There is nothing in this directory that a node would have written."""


class DataDirectory:
    """The contents of `root`. Made inside `open_offline`."""

    def __init__(self, root: Path, disk: ReadOnlyDisk) -> None:
        """Reads names only. Raises `NotADataDirectoryError`, `OSError`."""
        self.root = root
        self.disk = disk
        self.findings = Findings(root)
        self.cluster: str | None = None
        self.node: str | None = None
        names = disk.names(root)
        known = {folders.QUEUES_NAME, folders.MESSAGES_NAME, DIRECTORY}
        if folders.META_NAME not in names.files and not known & {*names.folders}:
            raise NotADataDirectoryError(
                f"{root} is not a node's data directory: it has no {folders.META_NAME}"
            )
        self._look_around(names, known)
        self._read_meta(names)
        self._apply_logs()
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
        for name in sorted(self.disk.names(root / DIRECTORY).files):
            what = _leftover(name) if name_of(name) is None else "messages of a log that was cut"
            self.findings.note(root / DIRECTORY / name, what)
        messages = self.disk.names(root / folders.MESSAGES_NAME)
        for name in (*messages.files, *messages.others):
            self.findings.note(root / folders.MESSAGES_NAME / name, _leftover(name))
        for store in (self.persistent, self.transient):
            inside = self.disk.names(store)
            for name in sorted(inside.files):
                if parse_name(name) is None:
                    self.findings.note(store / name, _leftover(name))
            self._irregular(store, inside, lambda name: parse_name(name) is not None)

    def _irregular(self, folder: Path, names: Names, is_ours: Callable[[str], bool]) -> None:
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
            self.findings.add(
                path,
                0,
                size,
                "can't be read: it says to which cluster and node the directory belongs",
            )
        else:
            self.cluster, self.node = texts

    def _apply_logs(self) -> None:
        try:
            reports = apply_logs(self.disk, self.root, self.disk.patch)
        except UnsupportedFormatError as error:
            self.findings.add(Path(error.file), 0, 0, str(error))
            return
        for report in reports:
            self.findings.report(report)
        if self.disk.patched_bytes:
            what = f"{self.disk.patched_bytes} bytes that the next start puts into journals"
            self.findings.note(self.root / LOG_NAMES[0], what)

    def _texts(self, path: Path, format: Format, size: int) -> tuple[str, str] | None:
        # Anybody may have put a file of any size here under that name.
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
            if not _is_of_queue(name):
                self.findings.note(folder / name, _leftover(name))
        self._irregular(folder, inside, _is_of_queue)
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
        if files.keys() <= folders.VOID_NAMES:
            self.findings.note(folder, "a queue that was being made, removed at the next start")
            return None
        self.findings.add(path, 0, size, "the queue's name is lost")
        return QueueFolder(folder, None, label, files)

    def _label(self, folder: Path, files: dict[str, int]) -> str | None:
        """None if it can't be read, which is only noted: nothing depends on the label."""
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


def _is_of_queue(name: str) -> bool:
    return name in _NAMES or is_journal(name) or is_segment(name)


def _leftover(name: str) -> str:
    if name.endswith(NEW_SUFFIX):
        return "half made, removed at the next start"
    if name.endswith(BAD_SUFFIX):
        return "set aside by an earlier start, because it could not be read"
    return "not of the store"
