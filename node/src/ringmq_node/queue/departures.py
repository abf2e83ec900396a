"""The messages that leave a queue: by a `Remove`, and as dead letters before that.

Joins `removals` and `deadletters`: a message that leaves for a reason becomes a letter if the queue
has a dead-letter exchange, and is removed when its letter has arrived; any other message is removed
at once. A queue without letters has no `DeadLetters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.backlog import LetterBacklog, RefusedLetters
from ringmq_node.queue.deadletters import UNDER_WAY_BYTES_MAX, DeadLetters
from ringmq_node.queue.effects import Effect
from ringmq_node.queue.leaving import NOBODY, LeaveReason, Leaving
from ringmq_node.queue.ops import Doom, Publish
from ringmq_node.queue.removals import Removals
from ringmq_node.queue.run import Messages
from ringmq_node.queue.state import ReplicatedState


class Departures:
    """Of one mastership."""

    def __init__(
        self,
        state: ReplicatedState,
        messages: Messages,
        is_given_up: Callable[[int], bool],
        *,
        has_dead_letters: bool,
    ) -> None:
        """`is_given_up`: whether no replica has the body of this missing message.
        `has_dead_letters`: whether messages that leave for a reason become letters."""
        self.removals = Removals()
        self._state = state
        self._messages = messages
        self._is_given_up = is_given_up
        self._has_dead_letters = has_dead_letters
        # How many bytes of letters may be under way now; its shell says when it is less.
        self.letter_window_bytes: Callable[[], int] = lambda: UNDER_WAY_BYTES_MAX
        # None before the first one.
        self._letters: DeadLetters | None = None
        if state.doomed is not None:
            self._letters = DeadLetters(state.doomed, state.last_number)
        self.backlog = LetterBacklog(state, messages)
        self.refused = RefusedLetters(state, messages)
        self._received = self._persisted = 0

    def leave(self, leaving: Leaving) -> None:
        """These messages, which are in no other place any more, leave. `next_ops` has to follow."""
        if not self._has_dead_letters or leaving.reason is LeaveReason.ACKNOWLEDGED:
            self.removals.gather(leaving.owner, leaving.ranges)
            return
        reason = DeathReason(leaving.reason.value)
        self._begun_letters().gather(leaving.owner, reason, leaving.ranges)

    def _begun_letters(self) -> DeadLetters:
        if self._letters is None:
            self._letters = DeadLetters(None, self._state.last_number)
        return self._letters

    def next_ops(self) -> list[Effect]:
        """The ops that take messages out, if none of the same kind is on its way."""
        effects: list[Effect] = [*self.removals.next_op(self._received)]
        if self._letters is not None:
            effects += self._letters.next_ops(self._received)
        return effects

    def watermarks(self, received: int, persisted: int) -> list[Effect]:
        """All members have received, and persisted, the ops up to these."""
        self._received, self._persisted = received, persisted
        effects: list[Effect] = [*self.removals.settled(persisted)]
        if self._letters is None:
            effects += self.removals.next_op(received)
            return effects
        effects += self._letters.settled(persisted)
        effects += self._send_letters()
        return effects + self.next_ops()

    # --- dead letters ---

    def born_doomed(self, number: int, op: Publish) -> list[Effect]:
        """These messages have been applied here as letters."""
        letters = self._begun_letters()
        letters.born(number, op.count, self._state.doomed)
        for bound in (self.backlog, self.refused):
            bound.add(op.first_position, op.last_position, op.block.body_bytes())
        # In a ring of one the watermark may have come before this call.
        return [*letters.settled(self._persisted), *self._send_letters()]

    def doomed(self, number: int, op: Doom) -> list[Effect]:
        """A `Doom` of `next_ops` has been applied here."""
        letters = self._letters
        assert letters is not None
        letters.applied(number, op, self._state.doomed)
        for first, last in op.ranges:
            self.backlog.add(first, last, self._messages.bytes_in(first, last))
        # In a ring of one the watermark may have come before this call.
        return [*letters.settled(self._persisted), *self._send_letters()]

    def dead_letter(self, *, enabled: bool) -> list[Effect]:
        """Whether messages that leave for a reason become letters from now on. If not, letters
        that nobody has sent yet are dropped."""
        self._has_dead_letters = enabled
        return self._send_letters()

    def letters_gone(self, ranges: Sequence[Range], *, arrived: bool) -> list[Effect]:
        """The target has confirmed these letters of a `SendLetters`, or they are dropped."""
        assert self._letters is not None
        done = self._letters.gone(ranges, arrived=arrived)
        if done:
            self.removals.gather(NOBODY, done)
        return [*self.next_ops(), *self._send_letters()]

    def letters_forgotten(self, ranges: Sequence[Range]) -> list[Effect]:
        """The target can't tell whether it has these letters: they get new ones."""
        assert self._letters is not None
        self._letters.renew(ranges)
        return [*self.next_ops(), *self._send_letters()]

    def _send_letters(self) -> list[Effect]:
        letters = self._letters
        if letters is None:
            return []
        if self._has_dead_letters:
            window_bytes = self.letter_window_bytes()
            return [*letters.next_letters(self._messages, self._is_given_up, window_bytes)]
        dropped = letters.drop_due()
        if dropped:
            self.removals.gather(NOBODY, dropped)
        return self.next_ops()

    # --- damage ---

    def given_up(self) -> list[Effect]:
        """More missing messages are given up: letters among them don't hold those behind."""
        return self._send_letters()

    def filled(self, first: int, last: int) -> list[Effect]:
        """Messages that were missing until now have their bodies again."""
        if self._letters is None:
            return []
        self._letters.filled(first, last)
        return [*self._send_letters(), *self.next_ops()]

    def take_damaged(self) -> list[Range]:
        """Takes the letters whose bodies were given up."""
        return [] if self._letters is None else self._letters.take_damaged()

    # --- depths and totals ---

    @property
    def letters(self) -> int:
        """Messages on their way to a dead-letter target."""
        return 0 if self._letters is None else self._letters.count

    @property
    def letters_arrived_total(self) -> int:
        """Letters that have arrived at their targets, since this mastership began."""
        return 0 if self._letters is None else self._letters.arrived_total

    @property
    def letters_dropped_total(self) -> int:
        """Letters that had no target or no room, since this mastership began."""
        dropped = 0 if self._letters is None else self._letters.dropped_total
        return dropped + self.refused.dropped_total

    def is_removing_below(self, end: int) -> bool:
        """Whether messages below `end` are to be removed by an op that hasn't been sent."""
        return any(first < end for first, _ in self.removals.still_live())

    def places(self) -> Iterator[Range]:
        """Positions of live messages that leave."""
        removing = self.removals.still_live()
        return removing if self._letters is None else chain(removing, self._letters.places())

    def check(self) -> None:
        self.removals.check()
        if self._letters is not None:
            removing = RangeSet(self.removals.still_live())
            self._letters.check(self._state.doomed, removing, self._persisted)
