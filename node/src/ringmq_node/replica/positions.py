"""One replica, as readers by position use it.

A reader notes positions, and comes back with them after days: to read the same messages again, or
to acknowledge all before one. The master and every synchronised mirror give the same answer, up to
the position that each knows to be confirmed. Positions that it can't have are refused by name; an
answer that is merely shorter would be a gap that nobody sees. So the checks are made in the same
turn of the loop as the look at the messages, for each piece again:

    moved    the queue is another one, or an operator has accepted the loss of its end
    gone     a reader has acknowledged them, a purge has removed some, or there never were any
    unsafe   they are not confirmed yet, as far as this replica knows: it may know soon
    held     (acknowledging) consumers have some of them

Positions in between that are not live are holes: consumed, expired, or dropped by a limit.
"""

from __future__ import annotations

import asyncio

from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.model.names import shown
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.effects import Effect
from ringmq_node.queue.leases import ChangeLease, LeaseAction, QueueLease
from ringmq_node.queue.run import Run
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.reading import read_whole
from ringmq_node.replica.refusals import no_trip
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import StoreError

# One piece: to read and send it is to hold the loop for less than 10 ms. One message may be
# larger. Each run costs some 25 us, so a queue full of holes is bounded by their number.
PIECE_BYTES_MAX = 1024 * 1024
PIECE_MESSAGES_MAX = 8192
PIECE_RUNS_MAX = 100
# Positions that are counted at a time, coarse to fine. The coarsest are those of a segment, so that
# one that isn't in memory is counted without being read.
COUNTED_AT_ONCE = (16_384, 1024, 64, 4, 1)
# For a trip around the ring, before positions are refused for good.
TRIP_WAIT_S = 2.5
# A look whether the ring takes ops again.
HELD_POLL_S = 0.01


@value
class Numbering:
    """The meaning of positions: the queue's id, and the epoch of the newest accepted loss (0: no
    loss)."""

    queue_id: str
    epoch: int


@value
class PositionStat:
    """The queue's positions now. `first` is the first live one, `end` the first that isn't safe."""

    numbering: Numbering
    first: int
    end: int
    next_position: int
    acked_end: int
    purged_end: int
    messages: int
    bytes: int
    messages_ready: int
    messages_unacknowledged: int
    messages_damaged: int
    leases: tuple[QueueLease, ...]


@value
class CountedRange:
    """The messages from somewhere up to `end`."""

    end: int
    messages: int
    bytes: int


@value
class BrowsedPiece:
    """All messages of `first` to before `end`; `damaged` are live, but no replica has a body."""

    first: int
    end: int
    runs: tuple[Run, ...]
    damaged: tuple[Range, ...]
    numbering: Numbering


@value
class AcknowledgedBelow:
    """How many messages an acknowledgement has removed, and the position below which all are."""

    messages: int
    acked_end: int


class Positions:
    """Of a replica that is the master or a synchronised mirror. Methods raise `BrokerError`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._name = shown(replica.record.name)

    @property
    def numbering(self) -> Numbering:
        losses = self._replica.view.losses
        return Numbering(self._replica.record.id, losses[-1].epoch if losses else 0)

    def stat(self) -> PositionStat:
        """At the master."""
        replica, queue = self._replica, self._replica.serving().queue
        state, end = replica.store.state, replica.safe_end
        return PositionStat(
            numbering=self.numbering,
            first=min(state.live.first, end) if state.live else end,
            end=end,
            next_position=state.next_position,
            acked_end=state.acked_end,
            purged_end=state.purged_end,
            messages=len(state.live),
            bytes=replica.store.live_bytes,
            messages_ready=len(queue.ready),
            messages_unacknowledged=queue.unacknowledged,
            messages_damaged=len(queue.damaged),
            leases=tuple(state.leases.values()),
        )

    # --- reading ---

    async def check(self, asked: Numbering | None, first: int, end: int) -> None:
        """Raises unless `first` to before `end` can be read here, as of the turn of the loop in
        which it returns."""
        try:
            self._check(asked, first, end)
        except BrokerError as error:
            mastership = self._replica.mastership
            if error.reason is not Reason.POSITIONS_GONE or mastership is None:
                raise
            # For good, so it has to be true at any later master: not an acknowledgement that the
            # next one never gets, nor an end that others have gone beyond. A trip shows that.
            await self._make_trip(mastership)
            self._check(asked, first, end)

    async def _make_trip(self, mastership: Mastership) -> None:
        """Returns when all that the state says now is safe."""
        try:
            async with asyncio.timeout(TRIP_WAIT_S):
                await mastership.reported(mastership.queue.wait_barrier)
        except TimeoutError:
            raise no_trip(self._name, mastership.epoch, TRIP_WAIT_S) from None

    def _check(self, asked: Numbering | None, first: int, end: int) -> None:
        self._check_here()
        self._check_numbering(asked, first, end)
        self._check_gone(first, end)
        self._check_safe(max(first, end))

    def _check_here(self) -> None:
        replica = self._replica
        if not replica.is_synchronised:
            raise BrokerError(
                Reason.NOT_MASTER,
                f"queue {self._name!r}: the replica on {replica.ring.me} isn't synchronised",
                queue=self._name,
            )

    def _check_numbering(self, asked: Numbering | None, first: int, end: int) -> None:
        if asked is None or asked == self.numbering:
            return
        last = max(first, end - 1)
        has = self.numbering
        if asked.queue_id != has.queue_id:
            why = f"it was declared anew: its id is {has.queue_id}, not {asked.queue_id}"
            raise self._refusal(Reason.POSITIONS_MOVED, why, first, last)
        if asked.epoch > has.epoch:
            # The reader has heard of a loss that this replica hasn't heard of yet.
            raise BrokerError(
                Reason.NOT_MASTER,
                f"queue {self._name!r}: {self._replica.ring.me} knows epoch {has.epoch} of its "
                f"numbering, not yet {asked.epoch}",
                queue=self._name,
            )
        lost = [loss for loss in self._replica.view.losses if loss.epoch > asked.epoch]
        begin = min(loss.position for loss in lost)
        why = (
            f"an operator has accepted a loss in epoch {has.epoch}: positions from {begin} on may "
            "belong to other messages now"
        )
        raise self._refusal(Reason.POSITIONS_MOVED, why, first, last, lost_from=begin)

    def _check_gone(self, first: int, end: int) -> None:
        state = self._replica.store.state
        gone_end = min(max(state.acked_end, state.purged_end), end)
        if first >= gone_end:
            return
        whys = []
        if first < state.acked_end:
            whys.append(f"a reader has acknowledged all below {state.acked_end}")
        if first < state.purged_end:
            whys.append(f"a purge has removed messages below {state.purged_end}")
        raise self._refusal(
            Reason.POSITIONS_GONE,
            " and ".join(whys),
            first,
            gone_end - 1,
            acked_end=state.acked_end,
            purged_end=state.purged_end,
        )

    def _check_safe(self, end: int) -> None:
        replica = self._replica
        safe_end, next_position = replica.safe_end, replica.store.state.next_position
        if end <= safe_end:
            return
        if replica.mastership is not None and end > next_position:
            # A mirror may be behind.
            why = f"its next position is {next_position}"
            raise self._refusal(Reason.POSITIONS_GONE, why, next_position, end - 1)
        why = f"{replica.ring.me} knows them to be confirmed below {safe_end} only"
        raise self._refusal(Reason.POSITIONS_UNSAFE, why, safe_end, end - 1)

    def _refusal(
        self, reason: Reason, why: str, first: int, last: int, **metadata: object
    ) -> BrokerError:
        what = {
            Reason.POSITIONS_MOVED: "belong to other messages",
            Reason.POSITIONS_GONE: "can't be read any more",
            Reason.POSITIONS_HELD: "are with consumers",
            Reason.POSITIONS_UNSAFE: "aren't confirmed yet",
        }[reason]
        return BrokerError(
            reason,
            f"queue {self._name!r}: positions {first} to {last} {what}: {why}",
            queue=self._name,
            first=first,
            last=last,
            **metadata,
        )

    async def read_piece(
        self, asked: Numbering | None, first: int, end: int, *, bytes_max: int = PIECE_BYTES_MAX
    ) -> BrowsedPiece:
        """The messages from `first` on, as many as are one piece of work; none at `end` or above.
        `first` is below `end`, or the piece is empty."""
        await self.check(asked, first, end)
        # From here on in one turn of the loop: the checks have seen the same live messages.
        replica = self._replica
        store, numbering = replica.store, self.numbering
        parts = store.state.live.ranges_from(first, PIECE_RUNS_MAX)
        parts = [part for part in parts if part[0] < end]
        if not parts:
            return BrowsedPiece(first, max(first, end), (), (), numbering)
        begin, last = parts[0][0], min(parts[-1][1], end - 1)
        # By this node's clock: the master may not have let go of them yet.
        expired = store.state.first_expired(begin, last, replica.now_ms)
        if expired is not None and expired[0] == begin:
            return BrowsedPiece(first, min(expired[1] + 1, end), (), (), numbering)
        if expired is not None:
            last = expired[0] - 1
        try:
            runs = read_whole(
                store,
                begin,
                last,
                bytes_max=bytes_max,
                messages_max=PIECE_MESSAGES_MAX,
                ahead=False,
            )
        except StoreError as error:
            raise BrokerError(Reason.STORE_FAILED, str(error)) from error
        if runs:
            covered = runs[-1].last_position + 1
            rest = store.state.live.ranges_from(covered, 1)
            covered = min(rest[0][0], end) if rest else end
            return BrowsedPiece(first, covered, tuple(runs), (), numbering)
        gap = store.missing.intersection(begin, last)[0]
        if not replica.given_up.contains_all(*gap):
            raise BrokerError(
                Reason.REPAIRING,
                f"queue {self._name!r}: positions {gap[0]} to {gap[1]} are damaged here, and are "
                "being fetched from another replica",
                queue=self._name,
            )
        return BrowsedPiece(first, gap[1] + 1, (), (gap,), numbering)

    async def range_end(
        self, asked: Numbering | None, first: int, *, messages_max: int, bytes_max: int
    ) -> CountedRange:
        """The largest range from `first` on, of safe messages, with at most so many messages and
        bytes of bodies (0: any number); but with one message, if there is any."""
        await self.check(asked, first, first)
        safe_end = self._replica.safe_end
        end, messages, size = first, 0, 0
        pieces = Pieces()
        for step in COUNTED_AT_ONCE:
            while end < safe_end:
                live, store = self._replica.store.state.live, self._replica.store
                part = live.ranges_from(end, 1)
                if not part or part[0][0] >= safe_end:
                    end = safe_end
                    break
                begin = part[0][0]
                stop = min((begin // step + 1) * step, safe_end)
                more = messages + live.count_in(begin, stop - 1)
                larger = size + store.bytes_in(begin, stop - 1)
                too_many = (messages_max and more > messages_max) or (
                    bytes_max and larger > bytes_max
                )
                if too_many and (messages or step > 1):
                    break
                end, messages, size = stop, more, larger
                if too_many:
                    # One that is too large by itself.
                    return CountedRange(end, messages, size)
                await pieces.step()
        # Something may have gone while they were counted.
        await self.check(asked, first, end)
        return CountedRange(end, messages, size)

    # --- at the master ---

    async def acknowledge_below(
        self, asked: Numbering | None, end: int, *, lease: str, token: int, now_ms: int
    ) -> AcknowledgedBelow:
        """Removes the ready messages below `end`; returns when that is safe."""
        mastership = await self._settled_mastership()
        try:
            # The range is empty: messages that are gone before `end` are no matter.
            self._check(asked, end, end)
            self._check_token(lease, token, now_ms)
        except BrokerError as error:
            if error.retryable:
                raise
            # For good: see `check`.
            await self._make_trip(mastership)
            mastership = await self._settled_mastership()
            self._check(asked, end, end)
            self._check_token(lease, token, now_ms)
        queue = mastership.queue
        held = queue.held_below(end)
        if held:
            why = f"{sum(last - first + 1 for first, last in held)} of them; ack or requeue these"
            raise self._refusal(Reason.POSITIONS_HELD, why, held[0][0], held[-1][1])
        removed = 0
        # By earlier calls and acks. Such an op is sent when all have the one before it: a trip that
        # begins now would say nothing of it.
        is_removing = queue.departures.is_removing_below(end)

        def ask(number: int) -> list[Effect]:
            nonlocal removed
            removed, effects = queue.acknowledge_below(number, end)
            # Also if there is nothing to remove: perhaps an earlier call has removed it, and that
            # isn't safe yet; or another master serves by now.
            return effects if removed else [*effects, *queue.wait_barrier(number)]

        await mastership.reported(ask)
        if is_removing and not removed:
            while queue.departures.is_removing_below(end):
                await asyncio.sleep(HELD_POLL_S)
                mastership.check_serving()
            await mastership.reported(queue.wait_barrier)
        return AcknowledgedBelow(removed, max(end, self._replica.store.state.acked_end))

    async def release_lease(self, op: ChangeLease) -> None:
        """The lease isn't this holder's any more; perhaps it was somebody else's before."""
        mastership = await self._settled_mastership()
        await mastership.reported(lambda number: mastership.queue.change_lease(number, op))

    async def change_lease(self, op: ChangeLease, asked: Numbering | None = None) -> QueueLease:
        """The lease as it is once it is acquired or renewed. Raises if it is somebody else's."""
        mastership = await self._settled_mastership()
        self._check_numbering(asked, 0, 0)
        await mastership.reported(lambda number: mastership.queue.change_lease(number, op))
        lease = self._replica.store.state.leases.get(op.name)
        if op.action is LeaseAction.ACQUIRE:
            if lease is None:
                raise BrokerError(
                    Reason.LIMIT_EXCEEDED,
                    f"queue {self._name!r}: it has as many leases as it may have",
                    queue=self._name,
                    limit="leases",
                )
            if lease.instance != op.instance:
                raise self._lease_refusal(Reason.LEASE_HELD, lease, op.name, op.at_ms)
            return lease
        if lease is None or lease.token != op.token:
            raise self._lease_refusal(Reason.LEASE_LOST, lease, op.name, op.at_ms)
        return lease

    async def _settled_mastership(self) -> Mastership:
        """This replica's mastership, once the state has all that was asked for before: a decision
        on an older state could contradict an op that is held."""
        mastership = self._replica.serving()
        while True:
            mastership.check_serving()
            mastership.check_writable()
            if not mastership.has_held_ops:
                return mastership
            await asyncio.sleep(HELD_POLL_S)

    def _check_token(self, name: str, token: int, now_ms: int) -> None:
        leases = self._replica.store.state.leases
        if name:
            lease = leases.get(name)
            if lease is None or lease.token != token:
                raise self._lease_refusal(Reason.LEASE_LOST, lease, name, now_ms)
            return
        for lease in leases.values():
            if lease.until_ms > now_ms:
                raise self._lease_refusal(Reason.LEASE_HELD, lease, lease.name, now_ms)

    def _lease_refusal(
        self, reason: Reason, lease: QueueLease | None, name: str, now_ms: int
    ) -> BrokerError:
        whose, left_ms = "nobody has it", 0
        if lease is not None:
            left_ms = max(0, lease.until_ms - now_ms)
            whose = f"it is leased by {lease.holder!r} for another {left_ms / 1000:.1f} s"
        lost = "this holder has lost it, and " if reason is Reason.LEASE_LOST else ""
        return BrokerError(
            reason,
            f"queue {self._name!r}, lease {name!r}: {lost}{whose}",
            queue=self._name,
            lease=name,
            holder="" if lease is None else lease.holder,
            expires_in_ms=left_ms,
        )
