"""The ends of logs that this node's replicas had to cut, kept for operators. See `tails`.

Each is a file of its own, with copies of the bodies (`storage.set_aside`). It is kept as long as a
leftover replica, and listed beside those. If it can't be kept, because the node's limit for such
files is reached, the disk is nearly full, or a write fails, the log isn't cut: the replica doesn't
join, and tries again. A ring that waits for a mirror can be helped. Confirmed messages that are cut
for want of room are gone.

A file is written in pieces: each is read on the event loop, and written by a thread. It is on disk
before the ring's state is installed. So a power cut leaves the log as it was, or the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from ringmq_base.limits import MIB
from ringmq_node.model.info import SetAsideEntry
from ringmq_node.queue.run import Run
from ringmq_node.replica.tails import Tail
from ringmq_node.storage import QueueStore, StoreError, StoreFailedError
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Errands
from ringmq_node.storage.errors import CorruptError, StoreClosedError
from ringmq_node.storage.format.set_aside import DIRECTORY, SetAsideInfo, file_name
from ringmq_node.storage.set_aside import SetAsideFile, SetAsideWriter, find, name_for

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 2.0
FILES_MAX = 1000
# Free disk that setting aside leaves to the queues.
DISK_RESERVE_BYTES = 64 * MIB
# Bodies and messages that are read in one piece, on the loop.
PIECE_BYTES = MIB // 4
PIECE_MESSAGES = 1000
# A file has that much beside its bodies for each message, and at all. Properties come on top.
_MESSAGE_OVERHEAD_BYTES = 64
_FILE_OVERHEAD_BYTES = 4096


class NotSetAsideError(Exception):
    """The end of the log can't be kept now, so it must not be cut. The message has the way out."""


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


class SetAsides:
    """Of one node."""

    def __init__(
        self,
        disk: Disk,
        errands: Errands,
        root: Path,
        *,
        node: str,
        keep_s: float,
        bytes_max: int,
        now: Callable[[], float] = time.time,
        free_bytes: Callable[[Path], int] = _free_bytes,
    ) -> None:
        """`root`: the data directory. `now`: seconds since 1970, as it goes on over restarts.

        With `keep_s` or `bytes_max` 0 nothing is kept, and logs are cut. Raises `OSError`.
        """
        self._disk = disk
        self._errands = errands
        self._root = root
        self._node = node
        self._keep_s = keep_s
        self._bytes_max = bytes_max
        self._now = now
        self._free_bytes = free_bytes
        self._files: dict[str, SetAsideFile] = {}
        # One at a time: two that fit alone may not fit together.
        self._turn = asyncio.Lock()
        self._faults: list[str] = []
        self._take(find(disk, root, repair=True))
        for file in self._files.values():
            logger.warning(
                "queue %s: %d messages of a log that was cut are set aside as %s",
                file.info.queue,
                file.messages,
                file.name,
            )

    def _take(self, found: tuple[list[SetAsideFile], list[str]]) -> None:
        files, faults = found
        self._files = {file.name: file for file in files}
        for fault in faults:
            if fault not in self._faults:
                logger.error("a set-aside file can't be read: %s", fault)
        self._faults = faults

    @property
    def file_bytes(self) -> int:
        return sum(file.file_bytes for file in self._files.values())

    def describe(self) -> tuple[SetAsideEntry, ...]:
        return tuple(self._described(file) for _, file in sorted(self._files.items()))

    def _described(self, file: SetAsideFile) -> SetAsideEntry:
        info = file.info
        return SetAsideEntry(
            name=file.name,
            queue=info.queue,
            id=info.queue_id,
            messages=file.messages,
            messages_missing=file.missing,
            file_bytes=file.file_bytes,
            first_position=info.first_position,
            next_position=info.next_position,
            log_epoch=info.log_epoch,
            log_number=info.log_number,
            confirmed=info.confirmed,
            at_s=info.at_s,
            removed_at_s=info.at_s + int(self._keep_s),
        )

    # --- keeping ---

    async def keep(self, store: QueueStore, queue: str, tail: Tail) -> bool:
        """Writes the messages of `tail`, unless they have been. Returns whether that took time.

        `queue`: its name. Raises `NotSetAsideError`, and `StoreFailedError` of the queue's store.
        """
        info = SetAsideInfo(
            queue_id=store.queue,
            queue=queue,
            node=self._node,
            log_epoch=tail.log_epoch,
            log_number=tail.log_number,
            first_position=tail.first_position,
            next_position=tail.next_position,
            ring_epoch=tail.ring_epoch,
            ring_log_epoch=tail.ring_log_epoch,
            ring_log_number=tail.ring_log_number,
            confirmed=tail.confirmed,
            at_s=int(self._now()),
        )
        if name_for(info) in self._files:
            # The same log, cut at the same place, by an attempt to join that came to nothing.
            return False
        if not self._keep_s or not self._bytes_max:
            _tell(info, "is cut; set_aside_s or set_aside_bytes_max is 0, so nothing is kept")
            return False
        async with self._turn:
            if name_for(info) in self._files:
                return True  # Another attempt of the same replica has done it meanwhile.
            try:
                file = await self._write(store, info)
            except (OSError, StoreError) as error:
                if isinstance(error, StoreFailedError):
                    raise
                raise NotSetAsideError(f"it can't be written: {error}") from error
            self._files[file.name] = file
        _tell(info, f"is cut: {file.messages} messages of it are set aside as {file.name}")
        if file.missing:
            logger.error("%s: %d messages had no body here", file.name, file.missing)
        return True

    async def _write(self, store: QueueStore, info: SetAsideInfo) -> SetAsideFile:
        first, last = info.first_position, info.next_position - 1
        live = store.state.live.intersection(first, last)
        messages = sum(high - low + 1 for low, high in live)
        needed = store.bytes_in(first, last) + messages * _MESSAGE_OVERHEAD_BYTES
        self._check_room(needed + _FILE_OVERHEAD_BYTES)
        writer = SetAsideWriter(self._disk, self._root, info)
        try:
            await self._in_thread(writer.begin)
            kept = 0
            while first <= last:
                runs = _read(store, first, last)
                if not runs:
                    break
                await self._in_thread(writer.add, runs)
                if store.closed:
                    # Its bodies are gone, or going: they must not be taken for missing.
                    raise StoreClosedError(f"queue {store.queue!r} was deleted or given up")
                kept += sum(run.block.count for run in runs)
                first = runs[-1].last_position + 1
            return await self._in_thread(writer.finish, messages - kept)
        except BaseException:
            # Also if the replica has left its ring meanwhile, which cancels this.
            await asyncio.shield(self._in_thread(writer.abandon))
            raise

    def _check_room(self, needed: int) -> None:
        if len(self._files) >= FILES_MAX:
            raise NotSetAsideError(f"{FILES_MAX} are kept already: remove some of them")
        if self.file_bytes + needed > self._bytes_max:
            raise NotSetAsideError(
                f"it takes {needed} bytes beside {self.file_bytes} of others, and "
                f"set_aside_bytes_max is {self._bytes_max}: export and remove others, or raise it"
            )
        free = self._free_bytes(self._root)
        if free - needed < DISK_RESERVE_BYTES:
            raise NotSetAsideError(
                f"it takes {needed} bytes, and {free} are free: make room on the disk"
            )

    # --- their end ---

    async def run(self) -> None:
        """Removes each when its time is over, until cancelled. An operator may remove any file
        earlier: it is found to be gone."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        if not self._files and not self._faults:
            return
        async with self._turn:
            try:
                self._take(await self._in_thread(find, self._disk, self._root, repair=False))
                now = self._now()
                for name, file in [*self._files.items()]:
                    if file.info.at_s + self._keep_s <= now:
                        await self._in_thread(self._remove, name)
                        del self._files[name]
                        logger.warning(
                            "queue %s: set-aside %s: removed, its time is over",
                            file.info.queue,
                            name,
                        )
            except (OSError, StoreError) as error:
                logger.warning("set-aside files can't be looked after now: %s", error)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # One thread for all of it: a file is abandoned when what was being written is written.
        return await self._errands.run("set-aside", work, *args, **kwargs)

    def _remove(self, name: str) -> None:
        self._disk.remove(self._root / DIRECTORY / file_name(name))
        self._disk.sync(self._root / DIRECTORY)


def _read(store: QueueStore, first: int, last: int) -> list[Run]:
    """The next messages that can be read; none if there are no more."""
    while True:
        try:
            return store.read(first, last, bytes_max=PIECE_BYTES, messages_max=PIECE_MESSAGES)
        except CorruptError:
            # The store has reported it, and the positions are missing from now on.
            continue


def _tell(info: SetAsideInfo, outcome: str) -> None:
    level = logging.ERROR if info.confirmed else logging.WARNING
    logger.log(
        level,
        "queue %s: the end of this replica's log, positions %d to %d, which %s confirmed, %s",
        info.queue,
        info.first_position,
        info.next_position - 1,
        "were" if info.confirmed else "may have been",
        outcome,
    )
