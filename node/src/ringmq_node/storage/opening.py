"""Opening a queue: its folder, and its recovery beside the event loop.

A journal of 65 000 publishes takes a second to read. So a queue with large files is read in a
thread, while the loop serves the others. The thread changes nothing that the loop uses: references
to bodies in the message store are gathered, and counted on the loop in pieces when it is done.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ringmq_base.pieces import Pieces
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.data_directory import NewFolder
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.recovery import Recovered, recover

# Folders with fewer bytes are read on the loop: some 20 ms at most.
ASIDE_BYTES_MIN = 64 << 10


def folder_of(
    disk: Disk, directory: Path, known: Path | None, queue: str, label: str, *, durable: bool
) -> tuple[Path, NewFolder | None]:
    """The folder of a queue that is opened, and its description if it isn't on the disk yet.

    `known`: the folder that a start has found. Raises `OSError`.
    """
    if known is not None:
        folders.keep_label(disk, known, label)
        return known, None
    if not durable:
        return folders.create_transient_folder(disk, directory, queue), None
    unmade = folders.new_folder(directory, queue, label)
    if not disk.list(unmade.path):
        return unmade.path, unmade
    # Its name was lost. The bodies and ops in it have a name again from here on.
    folders.make_folders(disk, [unmade])
    return unmade.path, None


def mark_partial(disk: Disk, folder: Path, unmade: NewFolder | None) -> None:
    """Marks the replica as partial; `Store.sync_marks` makes that durable. Raises `OSError`."""
    if unmade is not None:
        # Without a name the next start would remove the folder, and the mark with it.
        folders.write_name(disk, unmade)
    folders.mark_partial(disk, folder, "the disk was lost or restored")


async def recover_aside(
    disk: Disk, folder: Path | None, messages: MessageStore
) -> Recovered | None:
    """The queue in `folder`, which nobody has open; None if it is small, or there is none.

    Raises as `recover` does.
    """
    if folder is None:
        return None
    names = disk.list(folder)
    if sum(names.values()) < ASIDE_BYTES_MIN:
        return None
    places: list[RecordLocation] = []
    found = await asyncio.to_thread(recover, disk, folder, places.append, messages.lost)
    pieces = Pieces()
    for place in places:
        messages.share(place)
        await pieces.step()
    return found
