"""The views of all rings, as the registry has them: learned, read afresh, proposed.

Requests of rings that come while a call is under way go into the next one: a node that dies
costs a few round trips for all the rings that it was in, not one for each.

* Learned by a watch of `rings/`. A view is told once, and never an older one after it: each
  key's revision decides, whichever way it came. An epoch that falls means that the ring was
  deleted and made again between two looks; the old ring is told its end. A ring that was found
  absent is remembered until the watch has come to that revision; from then on a read of an unknown
  ring at an earlier revision is ignored, as it is older than the deletion.
* Read afresh by one `list` at a time (linearizable), repeated until it succeeds.
* Proposed by compare-and-set on the revision at which the view of the epoch before was read. All
  waiting proposals go in one commit. If that is refused, a read of the registry shows which of
  them have lost, and the others go again.

A commit that the registry certainly did not take (`RegistryUnavailableError`) is LOST, one
without an answer is UNKNOWN.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from ringmq_gm.core.events import Event, ProposalEnded, ProposalOutcome, Propose, ViewLearned
from ringmq_gm.core.views import View, ViewError
from ringmq_gm.registry.base import (
    Change,
    Changed,
    CommitUnknownError,
    Guard,
    KeyValue,
    Put,
    Registry,
    RegistryError,
    RegistryUnavailableError,
    Removed,
    Reset,
)

RINGS = "rings/"
# Proposals in one commit: below the registry's limit on operations.
BATCH_MAX = 100
# After so many refusals of a batch its proposals go one by one.
BATCH_TRIES_MAX = 3
_PAUSE_S_MAX = 1.0


def ring_key(ring: str) -> str:
    """Where the registry has the view of `ring` (`View.encode`)."""
    return RINGS + ring


@dataclass(frozen=True, slots=True)
class _Known:
    """The newest state of a ring's key that was seen. `value` None: the key is absent."""

    value: bytes | None
    revision: int


class RegistryViews:
    """See the module. `tell` gives an event to a ring, if it is hosted here; `fail` ends one
    whose key holds something else than a view."""

    def __init__(
        self,
        registry: Registry,
        *,
        tell: Callable[[str, Event], None],
        fail: Callable[[str, Exception], None],
    ) -> None:
        # The first snapshot has been read.
        self.read = asyncio.Event()
        # The last call was answered.
        self.answered = True
        self._registry = registry
        self._tell = tell
        self._fail = fail
        self._known: dict[str, _Known] = {}
        # The revision that the watch has come to; and the rings found absent ahead of it.
        self._shown = 0
        self._absent: dict[str, None] = {}
        # The rings that are hosted here, and the epoch that each was told last.
        self._told: dict[str, int] = {}
        self._to_refresh: dict[str, None] = {}
        self._proposals: deque[tuple[str, Propose]] = deque()
        self._under_way: tuple[str, ...] = ()
        self._refresh_wanted = asyncio.Event()
        self._proposal_waits = asyncio.Event()
        self._batch_ended = asyncio.Condition()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="watch of rings/")
            tasks.create_task(self._refresh(), name="refreshing of views")
            tasks.create_task(self._commit(), name="proposing of views")

    # --- for the rings ---

    def introduce(self, ring: str) -> None:
        """A ring is hosted from now on: it is told its view, now if one is known."""
        self._told[ring] = 0
        known = self._known.get(ring)
        if known is None or known.value is None:
            # The ring may have been made a moment ago, and the watch is late.
            self.refresh(ring)
        else:
            self._tell_view(ring, known.value)

    def forget(self, ring: str) -> None:
        """It isn't hosted any more."""
        self._told.pop(ring, None)
        self._to_refresh.pop(ring, None)

    async def wait_settled(self, ring: str) -> None:
        """Returns when no proposal of this ring is under way."""
        self._proposals = deque(item for item in self._proposals if item[0] != ring)
        async with self._batch_ended:
            await self._batch_ended.wait_for(lambda: ring not in self._under_way)

    def refresh(self, ring: str) -> None:
        self._to_refresh[ring] = None
        self._refresh_wanted.set()

    def propose(self, ring: str, proposal: Propose) -> None:
        self._proposals.append((ring, proposal))
        self._proposal_waits.set()

    def view(self, ring: str) -> View | None:
        """The newest view that the registry has shown, whether the ring is hosted here or not."""
        known = self._known.get(ring)
        return None if known is None or known.value is None else View.decode(known.value)

    def views(self) -> dict[str, View]:
        """`view` of every ring of the cluster, by name."""
        found = {ring: self.view(ring) for ring in self._known}
        return {ring: view for ring, view in found.items() if view is not None}

    # --- learning ---

    async def _watch(self) -> None:
        async for changes in self._registry.watch(RINGS):
            self.answered = True
            # Of one batch the revisions need not be in order.
            shown = [self._learn_change(change) for change in changes]
            self._shown = max([self._shown, *shown])
            self._drop_absent()
            self.read.set()

    def _learn_change(self, change: Change) -> int:
        """Returns the revision that it shows."""
        match change:
            case Reset(snapshot):
                self._learn_all(snapshot.entries, snapshot.revision)
                return snapshot.revision
            case Changed(entry):
                self._learn(entry)
                return entry.revision
            case Removed(key, revision):
                self._learn_absence(key.removeprefix(RINGS), revision)
                return revision

    def _learn_all(self, entries: Sequence[KeyValue], revision: int) -> None:
        for entry in entries:
            self._learn(entry)
        present = {entry.key.removeprefix(RINGS) for entry in entries}
        for ring in [ring for ring in self._known if ring not in present]:
            self._learn_absence(ring, revision)

    def _learn(self, entry: KeyValue, read_at: int | None = None) -> None:
        """`read_at`: as of which revision it was read, if it is not from the watch."""
        ring = entry.key.removeprefix(RINGS)
        known = self._known.get(ring)
        if known is None and read_at is not None and read_at < self._shown:
            return
        if known is not None and known.revision >= entry.revision:
            return
        self._known[ring] = _Known(entry.value, entry.revision)
        self._tell_view(ring, entry.value)

    def _learn_absence(self, ring: str, revision: int) -> None:
        known = self._known.get(ring)
        if known is not None and known.revision > revision:
            return
        self._known[ring] = _Known(None, revision)
        self._absent[ring] = None
        if known is not None and known.value is not None:
            self._tell(ring, ViewLearned(None))

    def _drop_absent(self) -> None:
        """Forgets the rings that aren't there, as far as the watch has come."""
        for ring in [*self._absent]:
            known = self._known[ring]
            if known.value is None and known.revision > self._shown:
                continue
            del self._absent[ring]
            if known.value is None:
                del self._known[ring]

    def _tell_view(self, ring: str, value: bytes) -> None:
        told = self._told.get(ring)
        if told is None:
            return
        try:
            view = View.decode(value)
        except ViewError as error:
            self._fail(ring, error)
            return
        if view.epoch < told:
            self._tell(ring, ViewLearned(None))
            return
        self._told[ring] = view.epoch
        self._tell(ring, ViewLearned(view))

    # --- reading afresh ---

    async def _refresh(self) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RegistryError),
            wait=wait_random_exponential(multiplier=0.02, max=_PAUSE_S_MAX),
        )
        while True:
            await self._refresh_wanted.wait()
            await retrying(self._refresh_once)

    async def _refresh_once(self) -> None:
        self._refresh_wanted.clear()
        rings, self._to_refresh = self._to_refresh, {}
        if not rings:
            return  # The rings that asked aren't hosted any more.
        try:
            await self._look(tuple(rings))
        except BaseException:
            self._to_refresh = {**rings, **self._to_refresh}
            raise

    async def _look(self, rings: Sequence[str]) -> None:
        """Reads the keys of these rings, all at once."""
        prefix = ring_key(rings[0]) if len(rings) == 1 else RINGS
        try:
            snapshot = await self._registry.list(prefix)
        except RegistryError:
            self.answered = False
            raise
        self.answered = True
        for entry in snapshot.entries:
            self._learn(entry, snapshot.revision)
        present = {entry.key.removeprefix(RINGS) for entry in snapshot.entries}
        for ring in rings:
            if ring not in present:
                self._learn_absence(ring, snapshot.revision)
        self._drop_absent()

    # --- proposing ---

    async def _commit(self) -> None:
        while True:
            await self._proposal_waits.wait()
            batch: dict[str, Propose] = {}
            while self._proposals and len(batch) < BATCH_MAX:
                if self._proposals[0][0] in batch:
                    break  # One key can't be written twice by one commit.
                ring, proposal = self._proposals.popleft()
                batch[ring] = proposal
            if not self._proposals:
                self._proposal_waits.clear()
            self._under_way = tuple(batch)
            try:
                await self._commit_batch(batch)
            finally:
                self._under_way = ()
            async with self._batch_ended:
                self._batch_ended.notify_all()

    async def _commit_batch(self, batch: dict[str, Propose]) -> None:
        """Carries all of them to an end, and tells each its outcome."""
        tries = 0
        while batch:
            unread = [ring for ring in batch if ring not in self._known]
            try:
                if unread:
                    await self._look(unread)
                self._drop_overtaken(batch)
                if not batch:
                    return
                if await self._commit_once(batch):
                    return
                # Some guard did not hold: a read shows whose.
                await self._look(tuple(batch))
            except RegistryUnavailableError:
                self._end(batch, ProposalOutcome.LOST)
                return
            tries += 1
            if tries == BATCH_TRIES_MAX and len(batch) > 1:
                for ring, proposal in list(batch.items()):
                    await self._commit_batch({ring: proposal})
                return

    def _drop_overtaken(self, batch: dict[str, Propose]) -> None:
        lost = {ring: p for ring, p in batch.items() if self._epoch(ring) != p.current_epoch}
        for ring in lost:
            del batch[ring]
        self._end(lost, ProposalOutcome.LOST)

    def _epoch(self, ring: str) -> int:
        """The epoch of the newest view that was seen; 0 if there is none, -1 if unreadable."""
        known = self._known.get(ring)
        value = None if known is None else known.value
        if value is None:
            return 0
        try:
            return View.decode(value).epoch
        except ViewError:
            return -1  # `_tell_view` ends the ring, if it is hosted here.

    async def _commit_once(self, batch: dict[str, Propose]) -> bool:
        """Whether the batch has come to an end."""
        guards = [Guard(ring_key(ring), self._revision(ring)) for ring in batch]
        puts = [Put(ring_key(ring), p.view.encode()) for ring, p in batch.items()]
        try:
            revision = await self._registry.commit(guards, puts)
        except CommitUnknownError:
            self.answered = False
            self._end(batch, ProposalOutcome.UNKNOWN)
            return True
        except RegistryUnavailableError:
            self.answered = False
            raise
        self.answered = True
        if revision is None:
            return False
        for (ring, proposal), put in zip(batch.items(), puts, strict=True):
            known = self._known.get(ring)
            # The watch may have shown this commit already, or even a later one.
            if self._shown < revision if known is None else known.revision < revision:
                self._known[ring] = _Known(put.value, revision)
                if ring in self._told:
                    self._told[ring] = proposal.view.epoch
        self._end(batch, ProposalOutcome.WON)
        return True

    def _revision(self, ring: str) -> int:
        known = self._known.get(ring)
        return known.revision if known is not None and known.value is not None else 0

    def _end(self, batch: dict[str, Propose], outcome: ProposalOutcome) -> None:
        for ring, proposal in batch.items():
            self._tell(ring, ProposalEnded(proposal.view, outcome))
