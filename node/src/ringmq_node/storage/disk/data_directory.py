"""The data directory: who owns it, which process has it open, and the folders of its queues.

    store.lock        locked (flock) by the process that has the directory open; holds its pid
    store.meta        the cluster and the node that it belongs to
    queues/H/         one folder per queue, H from the queue's name
        queue.name    the name
        queue.label   the name that people use, if that is another one
        queue.leftover no record of the registry names this replica, since when
        queue.partial this replica may lack confirmed messages; removed once it has caught up
        ...           journals and segments: see `format.queue_folder`
    queues/H.N.gone/  a deleted queue, about to be removed
    queues/H.transient/  the segments of a transient queue, and its `queue.name`; only the process
                      that made it can use it, so every start removes it

The bytes of the small files are in `format.texts`. A folder's name is the first 32
hexadecimal digits of the SHA-256 of the queue's name: any name of 1 to 255 bytes is legal, and
few file systems take them all. Nodes call a queue by its id; the label is for people who look at
a directory. Nothing depends on it: it isn't synced, and a wrong or damaged label is written anew
when the queue is opened.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import (
    CorruptError,
    CorruptionReport,
    DirectoryInUseError,
    ForeignDirectoryError,
)
from ringmq_node.storage.format.formats import (
    QUEUE_LABEL,
    QUEUE_LEFTOVER,
    QUEUE_NAME,
    QUEUE_PARTIAL,
    STORE_META,
)
from ringmq_node.storage.format.texts import decode_texts, encode_texts

logger = logging.getLogger(__name__)

META_NAME = "store.meta"
LOCK_NAME = "store.lock"
QUEUES_NAME = "queues"
MESSAGES_NAME = "messages"
NAME_NAME = "queue.name"
LABEL_NAME = "queue.label"
PARTIAL_NAME = "queue.partial"
LEFTOVER_NAME = "queue.leftover"
# A name that is written anew, until it is whole.
NEW_NAME_NAME = f"{NAME_NAME}.new"
# The files that a folder may have before its first journal is made.
TEXT_NAMES = frozenset({NAME_NAME, LABEL_NAME, PARTIAL_NAME, LEFTOVER_NAME})
# A folder without a readable name that has no others is half made. Not with `queue.partial`:
# nobody may forget that a replica lacks messages.
VOID_NAMES = TEXT_NAMES - {PARTIAL_NAME} | {NEW_NAME_NAME}
GONE_SUFFIX = ".gone"
TRANSIENT_SUFFIX = ".transient"
# The suffixes of folders that a start removes.
VOID_SUFFIXES = (GONE_SUFFIX, TRANSIENT_SUFFIX)
# So many folders that are made or changed together share one sync of everything.
SYNCED_AT_ONCE_MIN = 8


def folder_name(queue: str) -> str:
    """The name of a queue's folder. Raises `ValueError` for an illegal queue name."""
    encoded = queue.encode()
    if not 1 <= len(encoded) <= QUEUE_NAME_BYTES_MAX:
        raise ValueError(
            f"queue name has {len(encoded)} bytes; 1 to {QUEUE_NAME_BYTES_MAX} are legal"
        )
    return hashlib.sha256(encoded).hexdigest()[:32]


def lock_directory(directory: Path) -> int:
    """Takes the lock; returns the descriptor that holds it. Raises `DirectoryInUseError`."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    take_lock(descriptor, directory, "stop it, or use another directory", shared=False)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def take_lock(descriptor: int, directory: Path, way_out: str, *, shared: bool) -> None:
    """Locks the open lock file, or closes it and raises `DirectoryInUseError`, `OSError`.

    The error names the process in the file. `way_out` tells the operator how to go on.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DirectoryInUseError(
            f"{directory} is in use by process {holder}: {way_out}"
        ) from error
    except OSError:
        os.close(descriptor)
        raise


def claim(disk: Disk, directory: Path, cluster_id: str, node: str) -> None:
    """Makes the directory this node's, or checks that it is, and makes all of it durable.

    Raises `ForeignDirectoryError`, `UnsupportedFormatError`, `CorruptError`, `OSError`.
    """
    path = directory / META_NAME
    names = disk.list(directory)
    if META_NAME in names:
        data = disk.read(path, 0, names[META_NAME])
        texts = decode_texts(STORE_META, path, data)
        if texts is None:
            raise CorruptError(CorruptionReport(str(path), 0, len(data), "not a store.meta file"))
        if texts != (cluster_id, node):
            raise ForeignDirectoryError(
                f"{directory} belongs to node {texts[1]!r} of cluster {texts[0]!r}, "
                f"not to node {node!r} of cluster {cluster_id!r}"
            )
        # A killed process leaves writes that can be read and are not on the disk yet. Recovery must
        # see nothing that the next power cut could take back.
        disk.sync_all(directory)
        return
    if disk.list(directory / QUEUES_NAME):
        raise ForeignDirectoryError(
            f"{directory} has queues, but no {META_NAME} that names their owner: put that file "
            "back, or use another directory"
        )
    # Under another name until it is whole: a damaged store.meta would lock its owner out.
    new = directory / f"{META_NAME}.new"
    disk.remove(new)
    disk.write(new, 0, [encode_texts(STORE_META, cluster_id, node)], sync=True)
    disk.rename(new, path)
    disk.sync(directory)
    disk.sync(directory.parent)


def find_queues(disk: Disk, directory: Path) -> tuple[dict[str, Path], list[CorruptionReport]]:
    """The folders by queue, and reports of those whose queue's name is lost.

    Removes folders that are half made, deleted, or of transient queues.
    """
    queues: dict[str, Path] = {}
    reports: list[CorruptionReport] = []
    root = directory / QUEUES_NAME
    for name in sorted(disk.list(root)):
        folder = root / name
        if name.endswith(VOID_SUFFIXES):
            remove_folder(disk, folder)
            continue
        files = disk.list(folder)
        if not files:
            # A power cut has taken back all that was made in it. Removed as it is: should there be
            # anything in it all the same, this fails.
            disk.remove(folder)
            continue
        size = files.get(NAME_NAME, 0)
        path = folder / NAME_NAME
        texts = decode_texts(QUEUE_NAME, path, _name_in(disk, path, size)) if size else None
        if texts is not None and folder_name(texts[0]) == name:
            queues[texts[0]] = folder
        elif files.keys() <= VOID_NAMES:
            # The name is synced before the first journal is made. So this queue never had one: its
            # creation was cut short, and was reported to nobody.
            remove_folder(disk, folder)
        else:
            # The name is damaged, or can't be read, or it is the name of another queue's folder.
            reports.append(CorruptionReport(str(path), 0, size, "the queue's name is lost"))
    return queues, reports


def _name_in(disk: Disk, path: Path, size: int) -> bytes:
    """What a `queue.name` has; nothing, if its sector is bad. The folder's name is enough to find
    it, and whoever opens the queue writes the name anew. So it may not keep a node from starting.
    """
    try:
        return disk.read(path, 0, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        logger.error("%s: can't be read: %s", path, error)
        return b""


@dataclass(frozen=True, slots=True)
class NewFolder:
    """The folder of a queue that has nothing on disk yet. `label`: see the module."""

    path: Path
    queue: str
    label: str


def new_folder(directory: Path, queue: str, label: str) -> NewFolder:
    """Describes the folder of a new queue; makes nothing."""
    return NewFolder(directory / QUEUES_NAME / folder_name(queue), queue, label)


def make_folders(disk: Disk, new: Sequence[NewFolder]) -> None:
    """Makes these folders, with the queues' names in them, durably. Raises `OSError`.

    Many of them share one sync of the whole directory: three syncs for each would hold a round for
    seconds when a thousand queues get their first message at once.
    """
    if not new:
        return
    root = new[0].path.parent
    at_once = len(new) >= SYNCED_AT_ONCE_MIN
    for folder in new:
        write_name(disk, folder, sync=not at_once)
    if at_once:
        disk.sync_all(root.parent)
    else:
        for folder in new:
            disk.sync(folder.path)
        disk.sync(root)
        # It may have been made by these writes, in this thread or in another one of this round.
        disk.sync(root.parent)
    for folder in new:
        keep_label(disk, folder.path, folder.label)


def write_name(disk: Disk, folder: NewFolder, *, sync: bool = False) -> None:
    """Writes the queue's name, which makes the folder. The folder itself is not synced."""
    path = folder.path / NAME_NAME
    wanted = encode_texts(QUEUE_NAME, folder.queue)
    files = disk.list(folder.path)
    if not files:
        # From the inside out: a folder that a power cut keeps has its name, or it is empty.
        disk.write(path, 0, [wanted], sync=sync)
    elif NAME_NAME in files and _name_in(disk, path, files[NAME_NAME]) == wanted:
        # That of a partial replica, which gets its first op. A cut between its removal and the
        # next write would lose the name, and a start then the mark.
        if sync:
            disk.sync(path)
    else:
        # A queue whose name was lost. Under another name until it is whole, as for `store.meta`.
        new = folder.path / NEW_NAME_NAME
        disk.remove(new)
        disk.write(new, 0, [wanted], sync=True)
        disk.rename(new, path)


def create_transient_folder(disk: Disk, directory: Path, queue: str) -> Path:
    """Makes a new transient queue's folder. It isn't synced: the next start removes it anyway."""
    fresh = QUEUES_NAME not in disk.list(directory)
    folder = directory / QUEUES_NAME / (folder_name(queue) + TRANSIENT_SUFFIX)
    disk.write(folder / NAME_NAME, 0, [encode_texts(QUEUE_NAME, queue)])
    if fresh:
        # The next durable queue finds `queues/` there, and takes it for durable.
        disk.sync(directory)
    return folder


def keep_label(disk: Disk, folder: Path, label: str) -> None:
    """Writes the label, unless it is empty or on disk already. A failure is only logged."""
    path = folder / LABEL_NAME
    wanted = encode_texts(QUEUE_LABEL, label)
    if not label:
        return
    try:
        size = disk.list(folder).get(LABEL_NAME)
        if size is not None:
            if disk.read(path, 0, size) == wanted:
                return
            disk.remove(path)
        disk.write(path, 0, [wanted])
    except OSError as error:
        # The disk may be full, for example. Nothing depends on the label.
        logger.warning("%s: the queue's label %r is not kept: %s", folder, label, error)


def label_of(disk: Disk, folder: Path) -> str:
    """The name that people use; empty if it isn't there, or damaged. Raises `OSError`."""
    path = folder / LABEL_NAME
    size = disk.list(folder).get(LABEL_NAME)
    texts = None if size is None else decode_texts(QUEUE_LABEL, path, disk.read(path, 0, size))
    return "" if texts is None else texts[0]


def leftover_since(disk: Disk, folder: Path, now: float) -> float:
    """Since when no record names this replica, in seconds since 1970. Notes `now` if nothing is
    noted. It isn't synced: after a power cut the time begins again. Raises `OSError`."""
    path = folder / LEFTOVER_NAME
    size = disk.list(folder).get(LEFTOVER_NAME)
    if size is not None:
        texts = decode_texts(QUEUE_LEFTOVER, path, disk.read(path, 0, size))
        if texts is not None and texts[0].isascii() and texts[0].isdigit():
            return float(texts[0])
        disk.remove(path)
    disk.write(path, 0, [encode_texts(QUEUE_LEFTOVER, str(int(now)))])
    return now


def forget_leftover(disk: Disk, folder: Path) -> None:
    """A record names the replica again. Raises `OSError`."""
    disk.remove(folder / LEFTOVER_NAME)


def is_partial(disk: Disk, folder: Path) -> bool:
    """Whether the replica may lack confirmed messages. Only the file's presence counts."""
    return PARTIAL_NAME in disk.list(folder)


def mark_partial(disk: Disk, folder: Path, reason: str) -> None:
    """Marks the replica as partial. The caller makes it durable. Raises `OSError`."""
    if not is_partial(disk, folder):
        disk.write(folder / PARTIAL_NAME, 0, [encode_texts(QUEUE_PARTIAL, reason)])


def mark_whole(disk: Disk, folders: Sequence[Path]) -> None:
    """Removes the marks, durably. Raises `OSError`."""
    for folder in folders:
        disk.remove(folder / PARTIAL_NAME)
    if len(folders) >= SYNCED_AT_ONCE_MIN:
        disk.sync_all(folders[0].parent.parent)
    else:
        for folder in folders:
            disk.sync(folder)


def remove_folder(disk: Disk, folder: Path) -> None:
    for name in disk.list(folder):
        disk.remove(folder / name)
    disk.remove(folder)
