"""The registry's queue records, mirrored on this node by a watch.

A queue that is declared, changed or deleted through any node reaches the others through their
watch. A node that has committed a change itself waits until its own watch has shown it
(`wait_shown`), so that its clients see their own writes.

Invariant: a waiter is woken only after the replicas of this node match the records that it will
see (`follow` reconciles first). So "the queue is in the catalogue" implies "its replica is open
here, if there is one".

A record that can't be read stops nothing but its queue. It is logged once, and `unreadable` has
it until it is written anew or deleted. If this node knew the queue before, the last good record
counts on: its replica serves as long as no view has to be changed by way of that record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ringmq_base.notifier import Notifier
from ringmq_base.pieces import Pieces
from ringmq_gm.registry.base import (
    Change,
    Changed,
    KeyValue,
    Registry,
    RegistryUnavailableError,
    Removed,
    Reset,
)
from ringmq_node.model.reasons import BrokerError, Reason, quarantined
from ringmq_node.model.records import (
    QUEUES,
    QueueRecord,
    RecordError,
    decode_entry,
    name_of_key,
    queue_key,
)

logger = logging.getLogger(__name__)

# How far this node's watch may be behind the registry before a caller is refused.
WATCH_LAG_S_MAX = 5.0
# The share of a call's time that the registry may take. The rest is there to tell the client that
# the registry doesn't answer.
REGISTRY_SHARE = 0.75

T = TypeVar("T")

# By queue id: its record as it is now, or None if the queue is gone.
Touched = Mapping[str, QueueRecord | None]
Reconcile = Callable[[Touched], Awaitable[None]]


class QueueCatalogue:
    """`records`, by queue name, as far as the watch has come."""

    def __init__(self, registry: Registry) -> None:
        self.records: dict[str, QueueRecord] = {}
        # Those that are deleted when a connection ends, or their last consumer leaves.
        self.dependent: dict[str, QueueRecord] = {}
        # Why a queue's record can't be read, by the queue's name.
        self.unreadable: dict[str, str] = {}
        # Set once the registry has said which queues there are, and once this node's replicas
        # of them have been opened.
        self.answered = asyncio.Event()
        self.loaded = asyncio.Event()
        self._registry = registry
        # Names by registry key, and revisions by name, of the records that are here.
        self._names: dict[str, str] = {}
        self._revisions: dict[str, int] = {}
        # The registry's revision that the watch has come to.
        self._shown = 0
        self._changed = Notifier()

    async def follow(self, reconcile: Reconcile) -> None:
        """Follows the registry until cancelled; `reconcile` gets what each change has touched.

        Not all records each time: with ten thousand queues a look at all of them would cost more
        than all the rest of a declare.
        """
        async for changes in self._registry.watch(QUEUES):
            pieces = Pieces()
            touched: dict[str, QueueRecord | None] = {}
            shown = self._shown
            for change in changes:
                shown = max(shown, await self._learn_change(change, touched, pieces))
                await pieces.step()
            self.answered.set()
            await reconcile(touched)
            self.loaded.set()
            # Not with the first change of this revision: 1. a commit declares q1 to q250, 2. the
            # watch shows them, and q1 is learned, 3. the commit's answer comes, and whoever waits
            # for q250 is sent on, 4. there is no q250, so it is declared again, and isn't new.
            self._shown = shown
            self._changed.notify()

    async def _learn_change(
        self, change: Change, touched: dict[str, QueueRecord | None], pieces: Pieces
    ) -> int:
        """Returns the registry's revision that the change shows."""
        match change:
            case Reset(snapshot):
                # In pieces. A queue that is there before and after is there all the time.
                present = {entry.key for entry in snapshot.entries}
                for key in [key for key in self._names if key not in present]:
                    self._forget(key, touched)
                for name in [name for name in self.unreadable if queue_key(name) not in present]:
                    del self.unreadable[name]
                for entry in snapshot.entries:
                    self._learn(entry, touched)
                    await pieces.step()
                return snapshot.revision
            case Changed(entry):
                self._learn(entry, touched)
                return entry.revision
            case Removed(key, revision):
                self._forget(key, touched)
                return revision

    def _learn(self, entry: KeyValue, touched: dict[str, QueueRecord | None]) -> None:
        name = name_of_key(entry.key)
        try:
            record = decode_entry(entry.key, entry.value)
        except RecordError as error:
            if self.unreadable.get(name) != str(error):
                logger.error("queue %s: quarantined: %s", name, error)
            self.unreadable[name] = str(error)
            if name in self._revisions:
                self._revisions[name] = entry.revision
            return
        if self.unreadable.pop(name, None) is not None:
            logger.info("queue %s: its record can be read again", name)
        before = self.records.get(record.name)
        if before is not None:
            # Its id is another one if it was deleted and declared again between two looks.
            touched[before.id] = None
        touched[record.id] = record
        self.records[record.name] = record
        if record.owner or record.auto_delete:
            self.dependent[record.name] = record
        else:
            self.dependent.pop(record.name, None)
        self._names[entry.key] = record.name
        self._revisions[record.name] = entry.revision

    def _forget(self, key: str, touched: dict[str, QueueRecord | None]) -> None:
        self.unreadable.pop(name_of_key(key), None)
        name = self._names.pop(key, None)
        if name is not None:
            record = self.records.pop(name)
            self.dependent.pop(name, None)
            touched[record.id] = None
            del self._revisions[name]

    # --- looking up ---

    def record_of(self, name: str) -> QueueRecord:
        """Raises `BrokerError` if the catalogue has no such queue; see `ensure_known`."""
        record = self.records.get(name)
        if self._is_unknown(name):
            raise quarantined(name, self.unreadable[name])
        if record is None:
            raise BrokerError(Reason.QUEUE_NOT_FOUND, f"there is no queue {name!r}", queue=name)
        return record

    def record_if_readable(self, name: str) -> QueueRecord | None:
        """None if the queue's record can't be read. Raises `BrokerError` if there is no queue."""
        return None if self._is_unknown(name) else self.record_of(name)

    def _is_unknown(self, name: str) -> bool:
        return name in self.unreadable and name not in self.records

    async def ensure_known(self, name: str) -> None:
        """Returns once the catalogue has a queue that was declared before, through any node.

        If the watch hasn't shown the queue yet, the registry is asked: a client that declared it
        through another node must not be told that it doesn't exist. Raises `BrokerError` if the
        registry doesn't answer, or the watch stays behind it.
        """
        if name in self.records or name in self.unreadable:
            return
        await self.ensure_all_known([name])

    async def ensure_all_known(self, names: Sequence[str]) -> None:
        """The same for at most `OPERATIONS_MAX` names, by one call."""
        try:
            found = await self._registry.read([queue_key(name) for name in names])
        except RegistryUnavailableError as error:
            raise registry_away() from error
        try:
            async with asyncio.timeout(WATCH_LAG_S_MAX):
                for entry in found.entries:
                    await self.wait_present(name_of_key(entry.key))
        except TimeoutError:
            raise registry_away() from None

    # --- waiting for the watch; the caller has the deadline ---

    async def wait_present(self, name: str) -> None:
        """Returns when a queue of this name is in the catalogue, or its record can't be read."""
        while name not in self.records and name not in self.unreadable:
            await self._changed.wait()

    async def wait_shown(self, revision: int) -> None:
        """Returns when the watch has come to this revision of the registry."""
        while self._shown < revision:
            await self._changed.wait()

    async def wait_gone(self, record: QueueRecord) -> None:
        """Returns when the watch has shown that this queue was deleted.

        Compared by id: a queue of the same name may have been declared since.
        """
        while (shown := self.records.get(record.name)) is not None and shown.id == record.id:
            await self._changed.wait()

    async def wait_revision(self, name: str, revision: int) -> None:
        """Returns when the watch has shown this revision of the record, a later one, or none."""
        while self._revisions.get(name, revision) < revision:
            await self._changed.wait()


def registry_away() -> BrokerError:
    """The refusal of a call that needs the registry, while the registry is away."""
    return BrokerError(Reason.REGISTRY_UNAVAILABLE, "the registry does not answer; data goes on")


async def by_registry(work: Awaitable[T], deadline_s: float) -> T:
    """The result of `work`, which needs the registry; refuses while there is time to say why."""
    try:
        async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
            return await work
    except TimeoutError:
        raise registry_away() from None
