"""Opening a queue: its folder, and its recovery beside the event loop.

A journal of 65 000 publishes takes a second to read. So a queue with large files is read in a
thread, while the loop serves the others. The thread changes nothing that the loop uses: references
to bodies in the message store are gathered, and counted on the loop in pieces when it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
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
    disk: Disk,
    directory: Path,
    nameless: Container[str],
    known: Path | None,
    queue: str,
    label: str,
    *,
    durable: bool,
) -> tuple[Path, NewFolder | None]:
    """The folder of a queue that is opened, and its description if it isn't on the disk yet.

    `known`: the folder that a start has found; `nameless`: the names of those without a queue's
    name. Raises `OSError`.
    """
    if known is not None:
        folders.keep_label(disk, known, label)
        return known, None
    if not durable:
        return folders.create_transient_folder(disk, directory, queue), None
    unmade = folders.new_folder(directory, queue, label)
    if unmade.path.name not in nameless:
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


class AsideReader:
    """Of one store: reads queues that nobody has open."""

    def __init__(self, disk: Disk, messages: MessageStore) -> None:
        self._disk = disk
        self._messages = messages
        # The queues that are being read, by name.
        self._reading: dict[str, asyncio.Event] = {}

    async def recover(
        self, queue: str, folders: Mapping[str, Path], *, opened: Container[str]
    ) -> Recovered | None:
        """A queue that isn't `opened`; None if it is small, or has no folder.

        The caller opens the queue with it before it awaits anything. Two at the same queue:
        1. A start reads it as a leftover, for a second. Its record comes back meanwhile.
        2. The replica of that record is to be opened, and would read the folder as well: two
           threads would cut the same torn tail, and each body would be counted twice, for good.
        So the second waits for the first, and finds the queue open. Raises as `recover` does.
        """
        while (reading := self._reading.get(queue)) is not None:
            await reading.wait()
        path = None if queue in opened else folders.get(queue)
        if path is None or sum(self._disk.list(path).values()) < ASIDE_BYTES_MIN:
            return None
        done = self._reading[queue] = asyncio.Event()
        try:
            return await self._read(path)
        finally:
            del self._reading[queue]
            done.set()

    async def _read(self, folder: Path) -> Recovered:
        places: list[RecordLocation] = []
        lost = self._messages.lost
        found = await asyncio.to_thread(recover, self._disk, folder, places.append, lost)
        pieces = Pieces()
        for place in places:
            self._messages.share(place)
            await pieces.step()
        return found
