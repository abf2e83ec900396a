"""What waits for a round, and how much of it the next one takes, and whose.

All that is in a round waits for all of it. So a round has a bound of bytes, and a queue that has
gathered much doesn't fill it at the cost of the others.

**Shares.** What a queue has gathered is a share. One that has `share_bytes_max` is closed: it waits
as it is, and the next op begins another one. A round takes whole shares, of a queue in their order.

Bodies of a fan-out count once, for the queue that had them first: for the others only a reference
is written.

**Whose.** A queue's even part is the bytes of a round divided by its queues.

1. Queues that have no more than that go with the round, whatever others have.
2. The others take turns, one share each, then another one each, until the round is full. Queues
   that got something come last in the next round.

So an op of a queue with little waits for the round on its way and for its own: for less than
`round_bytes_max` and a share of each, where a share's last op may be larger. While there is room
for all, a round takes all, as if there were no shares.

**Bodies before records.** A share may refer to bodies that the message store has no room for in
this round. It is closed, and waits until they are in one (`reach`); shares without such bodies pass
it.

**Marks** answer when all is durable that had been appended at a moment. Later ops don't put that
off: a share that is open gets at most `share_bytes_max`.

No I/O, and no loop: the group commit asks, and carries out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages import ALL_RECORDS
from ringmq_node.storage.queue.journal import Piece
from ringmq_node.storage.queue.queue_store import CommitJob, QueueStore


@dataclass(slots=True, eq=False)
class _Share:
    """A closed share, and the mark before which it was begun."""

    job: CommitJob
    mark: int


class Gathering:
    """Of one store."""

    def __init__(self, limits: StoreLimits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        # Queues with an open share, those that have waited longest first, and the mark before which
        # it was begun. Dicts, not sets: the order of the queues in a round must not depend on
        # addresses, or no simulation could be repeated.
        self._dirty: dict[QueueStore, int] = {}
        # Queues with closed shares, in the order of their turns.
        self._closed: dict[QueueStore, deque[_Share]] = {}
        # The next mark; and how many shares that were begun before each mark aren't durable.
        self._mark = 0
        self._pending: dict[int, int] = {}
        # The marks of the shares in the round on its way.
        self._taken: list[int] = []

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._dirty or self._closed)

    def add(self, queue: QueueStore) -> None:
        """The queue has gathered something."""
        if queue not in self._dirty:
            self._dirty[queue] = self._mark
            self._pending[self._mark] = self._pending.get(self._mark, 0) + 1
        if queue.log.new_bytes >= self._limits.share_bytes_max:
            self._close(queue)

    def forget(self, queue: QueueStore) -> None:
        """Nothing of the queue is taken any more."""
        mark = self._dirty.pop(queue, None)
        if mark is not None:
            self._settle(mark)
        queue.log.drop_gathered()
        for share in self._closed.pop(queue, ()):
            self._counters.closed_bytes -= share.job.size_bytes
            queue.bodies.releases.wait_again(share.job.releases)
            self._settle(share.mark)

    # -- rounds

    def take(self, reach: int) -> list[CommitJob]:
        """What the next round writes, one job for each queue. `reach`: the key of the last record
        that the message store has written before it."""
        assert not self._taken, "one round at a time"
        limits = self._limits
        if (
            reach == ALL_RECORDS
            and not self._closed
            and self._counters.gathered_bytes <= limits.round_bytes_max
        ):
            queues = [*islice(self._dirty, limits.round_queues_max)]
            return [self._take_open(queue) for queue in queues]
        return self._choose(reach)

    def take_all(self) -> list[CommitJob]:
        """All that waits, for one round that is the last."""
        parts = {
            queue: [self._take_closed(share) for share in shares]
            for queue, shares in self._closed.items()
        }
        self._closed.clear()
        for queue in [*self._dirty]:
            parts.setdefault(queue, []).append(self._take_open(queue))
        return [_joined(jobs) for jobs in parts.values()]

    def ended(self) -> None:
        """What was taken is durable."""
        for mark in self._taken:
            self._settle(mark)
        self._taken.clear()

    def _choose(self, reach: int) -> list[CommitJob]:
        limits, closed = self._limits, self._closed
        small, large = self._sorted(reach)
        parts = {queue: [self._take_open(queue)] for queue in small}
        room = limits.round_bytes_max - sum(jobs[0].new_bytes for jobs in parts.values())
        for queue in large:
            self._close(queue)
        turns = deque(closed)
        # Those with little leave some room: somebody has a turn in each round.
        while turns and room > 0:
            queue = turns.popleft()
            shares = closed[queue]
            if shares[0].job.needs > reach:
                continue
            if queue not in parts and len(parts) >= limits.round_queues_max:
                continue
            job = self._take_closed(shares.popleft())
            parts.setdefault(queue, []).append(job)
            room -= job.new_bytes
            if shares:
                turns.append(queue)
            elif room > 0 and queue in self._dirty and queue.log.needs <= reach:
                job = self._take_open(queue)
                parts[queue].append(job)
                room -= job.new_bytes
        for queue in parts:
            left = closed.pop(queue, None)
            if left:
                # Behind the others.
                closed[queue] = left
        return [_joined(jobs) for jobs in parts.values()]

    def _sorted(self, reach: int) -> tuple[list[QueueStore], list[QueueStore]]:
        """Queues that have one share, which is open: those with little that could go, then those
        with more. Among these are those that need a later body: what they append from now on may
        need one that comes later still, and must not put off what waits."""
        limits = self._limits
        even_bytes = limits.round_bytes_max // limits.round_queues_max
        # One place is for a queue with more.
        count_max = max(limits.round_queues_max - 1, 1)
        small: list[QueueStore] = []
        large: list[QueueStore] = []
        for queue in self._dirty:
            if queue in self._closed:
                continue
            if queue.log.new_bytes > even_bytes or queue.log.needs > reach:
                # To close one takes some time of the loop. The others are closed in later rounds.
                if len(large) < limits.round_queues_max:
                    large.append(queue)
                continue
            small.append(queue)
            if len(small) == count_max:
                break
        return small, large

    def _close(self, queue: QueueStore) -> None:
        mark = self._dirty.pop(queue)
        job = queue.take()
        self._counters.closed_bytes += job.size_bytes
        self._closed.setdefault(queue, deque()).append(_Share(job, mark))

    def _take_open(self, queue: QueueStore) -> CommitJob:
        self._taken.append(self._dirty.pop(queue))
        return queue.take()

    def _take_closed(self, share: _Share) -> CommitJob:
        job = share.job
        self._taken.append(share.mark)
        self._counters.closed_bytes -= job.size_bytes
        # A round since it was closed may have made the folder.
        job.unmade = job.queue.unmade
        return job

    # -- marks

    def mark(self) -> int:
        """For `is_durable`: all that was appended up to now."""
        if self._mark in self._pending:
            self._mark += 1
        return self._mark

    def is_durable(self, mark: int) -> bool:
        """Whether all that was appended before that mark is durable, or belongs to nobody."""
        return next(iter(self._pending), mark) >= mark

    def _settle(self, mark: int) -> None:
        self._pending[mark] -= 1
        if not self._pending[mark]:
            del self._pending[mark]

    def check(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        limits, counters = self._limits, self._counters
        closed = [share for shares in self._closed.values() for share in shares]
        assert all(self._closed.values()), "a queue without a share has no turn"
        assert all(queue.log.new_bytes < limits.share_bytes_max for queue in self._dirty)
        assert counters.gathered_bytes == sum(queue.log.gathered_bytes for queue in self._dirty)
        assert counters.closed_bytes == sum(share.job.size_bytes for share in closed)
        marks = [*self._dirty.values(), *(share.mark for share in closed), *self._taken]
        assert self._pending == Counter(marks)
        assert [*self._pending] == sorted(self._pending)


def _joined(jobs: Sequence[CommitJob]) -> CommitJob:
    """Shares of one queue, one after the other, as one job."""
    if len(jobs) == 1:
        return jobs[0]
    pieces: list[Piece] = []
    for piece in (piece for job in jobs for piece in job.pieces):
        if pieces and piece.file is pieces[-1].file:
            # The share was closed in the middle of a journal: one write all the same.
            pieces[-1].buffers += piece.buffers
            pieces[-1].size_bytes += piece.size_bytes
        else:
            pieces.append(piece)
    return replace(
        jobs[-1],
        pieces=pieces,
        entries=[entry for job in jobs for entry in job.entries],
        releases=[place for job in jobs for place in job.releases],
        size_bytes=sum(job.size_bytes for job in jobs),
        new_bytes=sum(job.new_bytes for job in jobs),
        shares=len(jobs),
    )
