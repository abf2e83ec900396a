"""Opening a queue: its folder, and its recovery beside the event loop.

A journal of 65 000 publishes takes a second to read. So a queue with large files is read in a
thread, while the loop serves the others. The thread changes nothing that the loop uses: references
to bodies in the message store are gathered, and counted on the loop in pieces when it is done.

A queue of which a read fails is not opened, for a part of it may be worse than nothing. `ReadError`
says so, and the store goes on: it collects nothing in this life, as it doesn't know what that queue
refers to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Mapping
from functools import partial
from pathlib import Path

from ringmq_base.pieces import Pieces
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.data_directory import NewFolder
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Errands
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.recovery import Recovered, recover

logger = logging.getLogger(__name__)

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


def mark_unopened(disk: Disk, directory: Path, names: Iterable[str]) -> None:
    """Marks the replicas in folders of these `names`. Raises `OSError`."""
    # A later life may open one that couldn't be opened in this.
    for name in sorted(names):
        mark_partial(disk, directory / folders.QUEUES_NAME / name, None)


class AsideReader:
    """Of one store: reads queues that nobody has open."""

    def __init__(self, disk: Disk, messages: MessageStore, errands: Errands) -> None:
        self._disk = disk
        self._messages = messages
        self._errands = errands
        # The queues that are being read, by name.
        self._reading: dict[str, asyncio.Event] = {}

    async def recover(
        self, queue: str, folders: Mapping[str, Path], *, opened: Container[str]
    ) -> Recovered | None:
        """A queue that isn't `opened`; None if it is small, or has no folder.

        The caller opens the queue with it before it awaits anything, whatever has changed since:
        its references are counted. Two at the same queue:
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
        self._reading[queue] = asyncio.Event()
        places: list[RecordLocation] = []
        work = partial(recover, self._disk, path, places.append, self._messages.lost)
        found = self._errands.begin("recover", work)
        try:
            await asyncio.shield(found)
            await self._share(places)
            return found.result()
        finally:
            if found.done():
                self._ended(queue)
            else:
                # The caller was cancelled, and the thread is still at the folder.
                found.add_done_callback(partial(self._ended_alone, queue))

    def _ended(self, queue: str) -> None:
        self._reading.pop(queue).set()

    def _ended_alone(self, queue: str, found: asyncio.Future[Recovered]) -> None:
        self._ended(queue)
        if not found.cancelled() and found.exception() is not None:
            logger.info("the queue %r, which nobody waits for: %s", queue, found.exception())

    async def _share(self, places: list[RecordLocation]) -> None:
        pieces = Pieces()
        for place in places:
            self._messages.share(place)
            await pieces.step()
