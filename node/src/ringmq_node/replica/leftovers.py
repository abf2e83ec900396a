"""Replicas on this disk that no queue's record names any more: kept for a while, then removed.

A record is missing because its queue was deleted, or its replica went to another node, while this
node was away. Or because the registry was put back to an earlier state, or lost. Nobody here can
tell, and in the latter case these files may be the last that have the messages.

A leftover is opened like any other queue, and given to nobody: otherwise the message store could
never collect garbage, as it wouldn't know which bodies the leftover refers to. If a record names it
again, it is a replica as before. The moment in which it was found is in its folder, so that
restarts don't prolong its time.

A deletion that this node sees while it runs leaves nothing over, nor does a replica that is moved
to another node. But one whose end may be missed, and could not be set aside yet (`set_asides`), is
left over when it is moved: the others don't have that end, and whoever moves it doesn't know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ringmq_base.pieces import Pieces
from ringmq_node.model.info import LeftoverInfo
from ringmq_node.storage import QueueStore, Store, StoreFailedError
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.queue.recovery import Recovered

logger = logging.getLogger(__name__)

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Kept:
    store: QueueStore
    label: str
    # By the clock of the wall, in seconds.
    removed_at: float


class Leftovers:
    """Of one node."""

    def __init__(
        self,
        store: Store,
        *,
        keep_s: float,
        disk_is_trusted: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now`: seconds since 1970, as it has to go on over restarts. `disk_is_trusted`: as for
        `Hosting`."""
        self._store = store
        self._disk_is_trusted = disk_is_trusted
        self._keep_s = keep_s
        self._now = now
        self._kept: dict[str, _Kept] = {}

    async def keep(
        self, queue_ids: Iterable[str], is_used: Callable[[str], bool] = lambda _: False
    ) -> None:
        """These are leftovers. Removes those whose time is over. Raises `StoreFailedError`.

        A large one is read in a thread. `is_used` tells those that a record names again, as records
        change meanwhile.
        """
        pieces = Pieces()
        for queue_id in [*queue_ids]:
            await pieces.step()
            try:
                if self._store.knows(queue_id) and not is_used(queue_id):
                    found = await self._store.recover(queue_id)
                    # Asked again: a record may name it since.
                    if self._store.knows(queue_id):
                        self._take_over(queue_id, found, is_used=is_used(queue_id))
            except StoreFailedError:
                raise
            except Exception:
                # Files that a bug stumbles over are no reason to serve no queue. They stay.
                logger.exception("the leftover replica %r can't be opened", queue_id)

    def _take_over(self, queue_id: str, found: Recovered | None, *, is_used: bool) -> None:
        """The replica was read: `found`, unless it is small, or open by now."""
        if not is_used:
            self._keep(queue_id, found)
        elif found is not None and self._store.failure is None:
            # Its references are counted. So it is opened, for the replica of the record that names
            # it again. That one waits for this read, and would count them once more.
            self._open(queue_id, found)

    def _open(self, queue_id: str, found: Recovered | None) -> QueueStore:
        partial = not self._disk_is_trusted
        return self._store.open_queue(queue_id, partial=partial, found=found)

    def keep_back(self, queue_id: str) -> None:
        """The replica was moved to another node, and this one may have the last copy of confirmed
        messages. Raises `StoreFailedError`."""
        self._keep(queue_id, None)

    def _keep(self, queue_id: str, found: Recovered | None) -> None:
        opened = self._open(queue_id, found)
        disk, folder = self._store.disk, opened.directory
        now = self._now()
        since = min(folders.leftover_since(disk, folder, now), now)
        label = folders.label_of(disk, folder)
        if since + self._keep_s <= now:
            self._store.delete_queue(queue_id)
            logger.info("leftover replica %r of queue %s: removed", queue_id, label)
            return
        self._kept[queue_id] = _Kept(opened, label, since + self._keep_s)
        logger.warning(
            "replica %r of queue %s, %d messages, is named by no record of the registry: kept for "
            "%.0f s more",
            queue_id,
            label,
            len(opened.state.live),
            since + self._keep_s - now,
        )

    def claim(self, queue_id: str) -> None:
        """A record names it again."""
        kept = self._kept.pop(queue_id, None)
        if kept is not None:
            folders.forget_leftover(self._store.disk, kept.store.directory)
            logger.warning("leftover replica %r of queue %s: in use again", queue_id, kept.label)

    async def run(self, is_used: Callable[[str], bool] = lambda _: False) -> None:
        """Removes each when its time is over, until cancelled or until the store fails; but none
        that a record names again, and that waits to be opened (`is_used`)."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._now()
            over = [each for each, kept in self._kept.items() if kept.removed_at <= now]
            for queue_id in over:
                if is_used(queue_id):
                    continue
                kept = self._kept.pop(queue_id)
                try:
                    self._store.delete_queue(queue_id)
                except StoreFailedError:
                    return  # The node has been told.
                logger.info("leftover replica %r of queue %s: removed", queue_id, kept.label)

    def describe(self) -> tuple[LeftoverInfo, ...]:
        return tuple(
            LeftoverInfo(queue_id, kept.label, len(kept.store.state.live), int(kept.removed_at))
            for queue_id, kept in sorted(self._kept.items())
        )
