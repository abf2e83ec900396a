"""The views of all rings, as the registry has them: learned, read afresh, proposed.

Requests of rings that come while a call is under way go into the next one: a node that dies
costs a few round trips for all the rings that it was in, not one for each.

* Learned by a watch of `rings/`. A view is told once, and never an older one after it: each
  key's revision decides, whichever way it came. An epoch that falls means that the ring was
  deleted and made again between two looks; the old ring is told its end. A ring that was found
  absent is remembered until the watch has come to that revision; from then on a read of an unknown
  ring at an earlier revision is ignored, as it is older than the deletion.
* A key that holds no view is remembered with its revision, and told to nobody: a member that is
  open goes on in the view that it has, as if the registry were away. It is said in the log, once,
  and in `unreadable`, until the key is written again or deleted.
* Read afresh by one call at a time (linearizable), repeated until it succeeds.
* Proposed by compare-and-set on the revision at which the view of the epoch before was read. All
  waiting proposals go in one commit. If that is refused, a read of the registry shows which of
  them have lost, and the others go again.

A commit that the registry certainly did not take (`RegistryUnavailableError`) is LOST, one
without an answer is UNKNOWN.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from ringmq_base.pieces import Pieces
from ringmq_gm.core.events import Event, ProposalEnded, ProposalOutcome, Propose, ViewLearned
from ringmq_gm.core.views import MemberId, View, ViewError
from ringmq_gm.registry.base import (
    OPERATIONS_MAX,
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
    Snapshot,
)

log = logging.getLogger(__name__)

RINGS = "rings/"
# Proposals in one commit: below the registry's limit on operations.
BATCH_MAX = 100
# After so many refusals of a batch its proposals go one by one.
BATCH_TRIES_MAX = 3
# Rings whose keys are read by name, `OPERATIONS_MAX` at a time. For more of them all rings of the
# registry are read. Below that it costs too much: a node that dies costs a read for every few
# proposals that lose, and there may be ten thousand rings.
READ_BY_NAME_MAX = 8 * OPERATIONS_MAX
_PAUSE_S_MAX = 1.0


def ring_key(ring: str) -> str:
    """Where the registry has the view of `ring` (`View.encode`)."""
    return RINGS + ring


@dataclass(frozen=True, slots=True)
class _Known:
    """The newest state of a ring's key that was seen, decoded when it was learned: a node asks for
    the views of all rings far more often than they change."""

    revision: int
    # None if the key is absent, or holds something else; `fault` then says what.
    view: View | None = None
    fault: ViewError | None = None

    @property
    def is_absent(self) -> bool:
        return self.view is None and self.fault is None


def _decoded(value: bytes, revision: int) -> _Known:
    try:
        return _Known(revision, View.decode(value))
    except ViewError as error:
        return _Known(revision, fault=error)


class RegistryViews:
    """See the module. `tell` gives an event to a ring, if it is hosted here. `changed` hears of
    each ring, hosted here or not, whose view is another one, or is no more."""

    def __init__(
        self,
        registry: Registry,
        *,
        tell: Callable[[str, Event], None],
        changed: Callable[[str], None],
    ) -> None:
        # Why the view of a ring can't be read, by ring.
        self.unreadable: dict[str, str] = {}
        # The first snapshot has been read.
        self.read = asyncio.Event()
        # The last call was answered.
        self.answered = True
        self._registry = registry
        self._tell = tell
        self._changed = changed
        # Changed by `_keep` only.
        self._known: dict[str, _Known] = {}
        # How many masters and mirrors each node has by these views.
        self.masters: Counter[str] = Counter()
        self.mirrors: Counter[str] = Counter()
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
        if known is None or known.is_absent:
            # The ring may have been made a moment ago, and the watch is late.
            self.refresh(ring)
        else:
            self._tell_view(ring, known)

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
        return None if known is None else known.view

    def members_on(self, nodes: Container[str]) -> set[MemberId]:
        """The lives of these nodes that are members of any ring."""
        views = (known.view for known in self._known.values() if known.view is not None)
        return {member_id for view in views for member_id in view.ids if member_id.node in nodes}

    def _keep(self, ring: str, known: _Known | None) -> None:
        """Puts `known` in the place of what was known of the ring; None: nothing is."""
        before = self._known.pop(ring, None)
        if before is not None and before.view is not None:
            self._count(before.view, -1)
        if known is not None:
            self._known[ring] = known
            if known.view is not None:
                self._count(known.view, 1)
            if known.fault is not None:
                return  # The view before may still hold: nothing has shown another one.
        shown = None if known is None else known.view
        if shown != (None if before is None else before.view):
            self._changed(ring)

    def _count(self, view: View, change: int) -> None:
        self.masters[view.master.node] += change
        for member in view.members[1:]:
            self.mirrors[member.id.node] += change

    # --- learning ---

    async def _watch(self) -> None:
        async for changes in self._registry.watch(RINGS):
            self.answered = True
            # Of one batch the revisions need not be in order. And it is learned in pieces: when ten
            # thousand rings get a view at once, their cores take a second for it. `_shown` rises
            # at the end only, so that until then no absence in the batch is forgotten.
            shown = self._shown
            pieces = Pieces()
            for change in changes:
                shown = max(shown, await self._learn_change(change, pieces))
                await pieces.step()
            self._shown = shown
            self._drop_absent()
            self.read.set()

    async def _learn_change(self, change: Change, pieces: Pieces) -> int:
        """Returns the revision that it shows."""
        match change:
            case Reset(snapshot):
                await self._learn_all(snapshot.entries, snapshot.revision, pieces)
                return snapshot.revision
            case Changed(entry):
                self._learn(entry)
                return entry.revision
            case Removed(key, revision):
                self._learn_absence(key.removeprefix(RINGS), revision)
                return revision

    async def _learn_all(self, entries: Sequence[KeyValue], revision: int, pieces: Pieces) -> None:
        for entry in entries:
            self._learn(entry)
            await pieces.step()
        present = {entry.key.removeprefix(RINGS) for entry in entries}
        for ring in [ring for ring in self._known if ring not in present]:
            # One that was made meanwhile has a later revision.
            self._learn_absence(ring, revision)
            await pieces.step()

    def _learn(self, entry: KeyValue, read_at: int | None = None) -> None:
        """`read_at`: as of which revision it was read, if it is not from the watch."""
        ring = entry.key.removeprefix(RINGS)
        known = self._known.get(ring)
        if known is None and read_at is not None and read_at < self._shown:
            return
        if known is not None and known.revision >= entry.revision:
            return
        known = _decoded(entry.value, entry.revision)
        self._keep(ring, known)
        self._note_fault(ring, known)
        self._tell_view(ring, known)

    def _note_fault(self, ring: str, known: _Known) -> None:
        if known.fault is not None:
            self.unreadable[ring] = f"registry key {ring_key(ring)!r}: {known.fault}"
            log.error(
                "ring %r: its view in the registry can't be read, and can't change until the key is"
                " put right: %s",
                ring,
                self.unreadable[ring],
            )
        elif self.unreadable.pop(ring, None) is not None:
            log.info("ring %r: its view in the registry can be read again", ring)

    def _learn_absence(self, ring: str, revision: int) -> None:
        known = self._known.get(ring)
        if known is not None and known.revision > revision:
            return
        self._keep(ring, _Known(revision))
        self._absent[ring] = None
        self.unreadable.pop(ring, None)
        if known is not None and not known.is_absent:
            self._tell(ring, ViewLearned(None))

    def _drop_absent(self) -> None:
        """Forgets the rings that aren't there, as far as the watch has come."""
        for ring in [*self._absent]:
            known = self._known[ring]
            if known.is_absent and known.revision > self._shown:
                continue
            del self._absent[ring]
            if known.is_absent:
                self._keep(ring, None)

    def _tell_view(self, ring: str, known: _Known) -> None:
        told = self._told.get(ring)
        view = known.view
        if told is None or view is None:
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
        """Reads the keys of these rings."""
        try:
            if len(rings) > READ_BY_NAME_MAX:
                await self._learn_read(rings, await self._registry.list(RINGS))
            else:
                for start in range(0, len(rings), OPERATIONS_MAX):
                    asked = rings[start : start + OPERATIONS_MAX]
                    snapshot = await self._registry.read([*map(ring_key, asked)])
                    await self._learn_read(asked, snapshot)
        except RegistryError:
            self.answered = False
            raise
        self.answered = True

    async def _learn_read(self, rings: Sequence[str], snapshot: Snapshot) -> None:
        """Learns what a read of these rings, and maybe of others, has brought."""
        pieces = Pieces()
        for entry in snapshot.entries:
            self._learn(entry, snapshot.revision)
            await pieces.step()
        present = {entry.key.removeprefix(RINGS) for entry in snapshot.entries}
        for ring in rings:
            if ring not in present:
                self._learn_absence(ring, snapshot.revision)
                await pieces.step()
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
            # Another member may have told the ring a view that was not seen here yet.
            unread = [
                ring
                for ring, proposal in batch.items()
                if ring not in self._known or self._epoch(ring) < proposal.current_epoch
            ]
            try:
                if unread:
                    await self._look(unread)
                await self._drop_overtaken(batch)
                if not batch:
                    return
                if await self._commit_once(batch):
                    return
                # Some guard did not hold: a read shows whose.
                await self._look(tuple(batch))
            except RegistryUnavailableError:
                await self._end(batch, ProposalOutcome.LOST)
                return
            tries += 1
            if tries == BATCH_TRIES_MAX and len(batch) > 1:
                for ring, proposal in list(batch.items()):
                    await self._commit_batch({ring: proposal})
                return

    async def _drop_overtaken(self, batch: dict[str, Propose]) -> None:
        lost = {ring: p for ring, p in batch.items() if self._epoch(ring) != p.current_epoch}
        for ring in lost:
            del batch[ring]
        await self._end(lost, ProposalOutcome.LOST)

    def _epoch(self, ring: str) -> int:
        """The epoch of the newest view that was seen; 0 if there is none, -1 if unreadable."""
        known = self._known.get(ring)
        if known is None or known.is_absent:
            return 0
        # Unreadable: nothing can be written on top of it.
        return -1 if known.view is None else known.view.epoch

    async def _commit_once(self, batch: dict[str, Propose]) -> bool:
        """Whether the batch has come to an end."""
        guards = [Guard(ring_key(ring), self._revision(ring)) for ring in batch]
        puts = [Put(ring_key(ring), p.view.encode()) for ring, p in batch.items()]
        try:
            revision = await self._registry.commit(guards, puts)
        except CommitUnknownError:
            self.answered = False
            await self._end(batch, ProposalOutcome.UNKNOWN)
            return True
        except RegistryUnavailableError:
            self.answered = False
            raise
        self.answered = True
        if revision is None:
            return False
        for ring, proposal in batch.items():
            known = self._known.get(ring)
            # The watch may have shown this commit already, or even a later one.
            if self._shown < revision if known is None else known.revision < revision:
                self._keep(ring, _Known(revision, proposal.view))
                if ring in self._told:
                    self._told[ring] = proposal.view.epoch
        await self._end(batch, ProposalOutcome.WON)
        return True

    def _revision(self, ring: str) -> int:
        known = self._known.get(ring)
        return known.revision if known is not None and not known.is_absent else 0

    async def _end(self, batch: dict[str, Propose], outcome: ProposalOutcome) -> None:
        pieces = Pieces()
        for ring, proposal in batch.items():
            self._tell(ring, ProposalEnded(proposal.view, outcome))
            await pieces.step()
