"""Dead letters: from the wish to doom a message until its dead-letter target has it.

A message that leaves for a reason (rejected, expired, too many of them, delivered too often) goes
through these stages, one way, and is in one of them at a time:

    stage       in the state   leaves it when
    gathered    live           a `Doom` op is made: when no other one of this reason is sent
    in hand     live           the ring has taken the op and given it a number (`applied`)
    hidden      doomed         the op is persisted by all (`settled`); then its owner is told
    due         doomed         there is room under way (`next_letters`): its body is read
    under way   doomed         its target has confirmed it, or it is dropped (`gone`)

and then through `removals`, as every message. The message is live all that time, on every replica.
A message that is refused for the queue's length is born doomed (`born`): it begins as hidden.

Why a letter waits until its `Doom` is safe:

1. The master dooms position 7, gives it letter 1, and sends it. The target confirms.
2. The master dies before any mirror has received the op.
3. The new master gives 7 to a consumer again, which processes it. Worse: it dooms position
   8, whose letter is now 1 as well. The target takes 8 for a repeat, and 8 is lost.

Why a letter is sent again, and arrives once. When the master dies before the `Remove` of a letter
is safe, the next one finds it doomed. Whether the target has it nobody knows, so it is sent
again, under the same producer id and sequence: the letter's number. Letters leave in order of their
numbers, no further apart than a target remembers (`UNDER_WAY_MESSAGES_MAX`). A target that can't
tell all the same gets the message under a new letter: rather twice than never.

A letter whose body is missing holds those behind it until it is repaired or given up. One that
is given up is put *aside*: when its body turns up after all, it is doomed anew, as later letters
have left and its own number would be taken for a repeat.

Invariants (`check`):
* the stages are disjoint; those from `hidden` on, and nothing else but what is being removed, are
  what the state says is doomed;
* letters under way are in order, and no further apart than they may be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

from ringmq_base.limits import KIB, MIB
from ringmq_base.ranges import Range, RangeSet, numbers_in
from ringmq_base.values import value
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.doomed import Doomed, DoomedRun
from ringmq_node.queue.effects import Letters, MulticastOp, ReportSettled, SendLetters
from ringmq_node.queue.leaving import NOBODY
from ringmq_node.queue.ops import Doom
from ringmq_node.queue.removals import Removals
from ringmq_node.queue.run import Messages

# Letters under way at a time, whose bodies are in memory; one larger letter always passes. From the
# oldest of them on, no letter is further away than this: a queue remembers so many gaps in the
# sequences of a producer, and more, and so recognises all that a new master sends again
# (`gaps.PRODUCER_GAPS_MAX`).
UNDER_WAY_MESSAGES_MAX = 1000
UNDER_WAY_BYTES_MAX = 4 * MIB
# And read in one piece of work: some 30 us for each run.
PIECE_MESSAGES_MAX = 200
PIECE_BYTES_MAX = 512 * KIB


@value
class HiddenRun:
    """To be sent when the op `number` is safe."""

    number: int
    run: DoomedRun


@value
class LetterUnderWay:
    letter: int
    reason: DeathReason
    # Of its body and its properties.
    size_bytes: int


class DeadLetters:
    """Of one mastership, which begins with what is doomed in the state."""

    def __init__(self, doomed: Doomed | None, last_number: int) -> None:
        # Messages that are in one of the stages.
        self.count = 0 if doomed is None else len(doomed.positions)
        self.arrived_total = 0
        self.dropped_total = 0
        self._dooming: dict[DeathReason, Removals] = {}
        # The first letter that this master's own ops give.
        self._next_letter = 1 if doomed is None else doomed.next_letter
        runs = [] if doomed is None else doomed.runs
        # Some may have been doomed by ops as unsafe as the last one.
        self._hidden = deque(HiddenRun(last_number, run) for run in runs)
        self._due: deque[DoomedRun] = deque()
        # By position, in the order of the letters.
        self._under_way: dict[int, LetterUnderWay] = {}
        self._under_way_bytes = 0
        self._aside: list[DoomedRun] = []

    # --- to be doomed ---

    def gather(self, owner: int, reason: DeathReason, ranges: Sequence[Range]) -> None:
        """`owner` lets these go; it is told of each part for which that is safe."""
        self.count += numbers_in(ranges)
        self._gather(owner, reason, ranges)

    def _gather(self, owner: int, reason: DeathReason, ranges: Sequence[Range]) -> None:
        found = self._dooming.get(reason)
        if found is None:

            def doom(ranges: tuple[Range, ...]) -> Doom:
                return Doom(reason, ranges)

            found = self._dooming[reason] = Removals(doom)
        found.gather(owner, ranges)

    def next_ops(self, received: int) -> list[MulticastOp]:
        """The next `Doom` of each reason, if none of it is on its way."""
        return [op for one in self._dooming.values() for op in one.next_op(received)]

    def applied(self, number: int, op: Doom, doomed: Doomed | None) -> None:
        """An op of `next_ops` has been applied here. `doomed`: of the state, after it."""
        self._dooming[op.reason].sent(number)
        self._hide(number, doomed)

    def born(self, number: int, count: int, doomed: Doomed | None) -> None:
        """So many messages were born doomed by the op `number`."""
        self.count += count
        self._hide(number, doomed)

    def _hide(self, number: int, doomed: Doomed | None) -> None:
        assert doomed is not None
        for run in doomed.since(self._next_letter):
            self._hidden.append(HiddenRun(number, run))
        self._next_letter = doomed.next_letter

    def settled(self, persisted: int) -> list[ReportSettled]:
        """The owners to be told, now that all members have persisted the ops so far."""
        while self._hidden and self._hidden[0].number <= persisted:
            self._due.append(self._hidden.popleft().run)
        return [told for one in self._dooming.values() for told in one.settled(persisted)]

    # --- on their way ---

    def next_letters(
        self,
        messages: Messages,
        is_given_up: Callable[[int], bool],
        window_bytes: int = UNDER_WAY_BYTES_MAX,
    ) -> list[SendLetters]:
        """The letters for which there is room now, in order: one, if none is under way, and as
        many as `window_bytes` have room for."""
        window_bytes = min(window_bytes, UNDER_WAY_BYTES_MAX)
        found: list[Letters] = []
        room, room_bytes = PIECE_MESSAGES_MAX, PIECE_BYTES_MAX
        while self._due and room > 0:
            head = self._due[0]
            room = min(room, self._oldest(head) + UNDER_WAY_MESSAGES_MAX - head.letter)
            room_bytes = min(room_bytes, window_bytes - self._under_way_bytes)
            if room <= 0 or (room_bytes <= 0 and self._under_way):
                break
            size = messages.bytes_in(head.first, head.first)
            if self._under_way and size > room_bytes:
                break
            runs = messages.read(
                head.first, head.last, bytes_max=max(room_bytes, 0), messages_max=room
            )
            if not runs:
                if not is_given_up(head.first):
                    break
                self._take_due(head.first)
                self._aside.append(head.part(head.first, head.first))
                continue
            for run in runs:
                letter = head.letter + run.first_position - head.first
                found.append(Letters(letter, head.reason, run))
                sizes = [run.block.sent_bytes(stop) for stop in range(run.block.count + 1)]
                for at, (before, after) in enumerate(pairwise(sizes)):
                    self._under_way[run.first_position + at] = LetterUnderWay(
                        letter + at, head.reason, after - before
                    )
                self._under_way_bytes += sizes[-1] - sizes[0]
                room -= run.block.count
                room_bytes -= sizes[-1] - sizes[0]
            self._take_due(runs[-1].last_position)
        return [SendLetters(tuple(found))] if found else []

    def _oldest(self, head: DoomedRun) -> int:
        """The first letter that is under way, if any."""
        for entry in self._under_way.values():
            return entry.letter
        return head.letter

    def _take_due(self, last: int) -> None:
        """The first due run, up to this position, is due no more."""
        head = self._due.popleft()
        if last < head.last:
            self._due.appendleft(head.part(last + 1, head.last))

    def gone(self, ranges: Sequence[Range], *, arrived: bool) -> list[Range]:
        """These have arrived at their targets, or are dropped: they are to be removed. Returns
        those that were under way."""
        done = self._end(ranges)
        self.count -= len(done)
        if arrived:
            self.arrived_total += len(done)
        else:
            self.dropped_total += len(done)
        return [(at, at) for at in done]

    def renew(self, ranges: Sequence[Range]) -> None:
        """A target can't tell whether it has these: they get letters that it surely hasn't."""
        for at, entry in self._end(ranges).items():
            self._gather(NOBODY, entry.reason, [(at, at)])

    def _end(self, ranges: Sequence[Range]) -> dict[int, LetterUnderWay]:
        """These are under way no more, if they were."""
        done: dict[int, LetterUnderWay] = {}
        for first, last in ranges:
            for position in range(first, last + 1):
                entry = self._under_way.pop(position, None)
                if entry is not None:
                    self._under_way_bytes -= entry.size_bytes
                    done[position] = entry
        return done

    def drop_due(self) -> list[Range]:
        """The queue has no dead-letter exchange any more: what nobody has sent is to be removed."""
        ranges = [run.positions for run in (*self._due, *self._aside)]
        self._due.clear()
        self._aside.clear()
        self.count -= numbers_in(ranges)
        self.dropped_total += numbers_in(ranges)
        return ranges

    # --- damage ---

    def filled(self, first: int, last: int) -> None:
        """Bodies of messages that were missing are here again."""
        aside, self._aside = self._aside, []
        for run in aside:
            if first <= run.first <= last:
                self._gather(NOBODY, run.reason, [run.positions])
            else:
                self._aside.append(run)

    def take_damaged(self) -> list[Range]:
        """Takes every letter that was put aside."""
        taken = [run.positions for run in self._aside]
        self._aside.clear()
        self.count -= numbers_in(taken)
        return RangeSet(taken).ranges()

    # --- depths ---

    def places(self) -> Iterator[Range]:
        """The positions in all stages."""
        return chain(
            chain.from_iterable(one.still_live() for one in self._dooming.values()),
            self._doomed_places(),
        )

    def _doomed_places(self) -> Iterator[Range]:
        return chain(
            (hidden.run.positions for hidden in self._hidden),
            (run.positions for run in chain(self._due, self._aside)),
            RangeSet((at, at) for at in sorted(self._under_way)),
        )

    def check(self, doomed: Doomed | None, removing: RangeSet, persisted: int) -> None:
        """`removing`: what `removals` has that is still live."""
        for one in self._dooming.values():
            one.check()
        assert not self._hidden or self._hidden[0].number > persisted
        assert self.count == numbers_in(self.places())
        sent = [*self._under_way.values()]
        assert self._under_way_bytes == sum(each.size_bytes for each in sent)
        assert all(a.letter < b.letter for a, b in pairwise(sent))
        assert not sent or sent[-1].letter - sent[0].letter < UNDER_WAY_MESSAGES_MAX
        letters = [run.letter for run in (*self._due, *(hidden.run for hidden in self._hidden))]
        assert letters == sorted(letters)
        places = RangeSet(self._doomed_places())
        anew = RangeSet(part for one in self._dooming.values() for part in one.still_live())
        positions = RangeSet() if doomed is None else doomed.positions
        rest = RangeSet(positions.ranges()).without(places)
        for first, last in rest:
            for at in range(first, last + 1):
                assert at in removing or at in anew, at
        assert not places.without(positions)
