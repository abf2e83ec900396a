"""Messages that no consumer has: ready to be delivered, or put aside as damaged.

`Ready` gives out messages from the front: in order of positions, those of a higher priority first
(`priorities`). Which of them are visible is for `confirms` to say: `visible_below` comes in with
each call.

A body may be found damaged at any time; then its position is *missing* while the caller
fetches the body from another replica. Until that has ended, the messages before it are
delivered and none behind it: a consumer that got 8 before 7 would see the queue out of order,
and 7, delivered for the first time after it, wouldn't say so. If no replica has the body, the
caller *gives it up*: a ready message that is given up is put aside as *damaged*, and
deliveries go on behind it. It comes back to its place if its body turns up after all.

Invariants (`check`):
* no position is both ready and damaged;
* a damaged message was given up; a message that was given up has no body and isn't ready;
* `body_bytes` is the size of the ready bodies that aren't missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from ringmq_base.ranges import Range, RangeSet, numbers_in
from ringmq_node.queue.limits import LengthLimits, first_ones
from ringmq_node.queue.priorities import Line, Priorities
from ringmq_node.queue.run import Messages, Run

# Of the line, those that are looked at together.
PARTS_MAX = 256


class Ready:
    """Begins with every message in `live`: a new master knows of no consumer. `priorities` are
    those of the state, and change with it."""

    def __init__(
        self, live: RangeSet, messages: Messages, priorities: Priorities | None = None
    ) -> None:
        self.line = Line(live, Priorities() if priorities is None else priorities)
        self.damaged = RangeSet()
        self.body_bytes = messages.bytes_in(live.first, live.last) if live else 0
        # Damaged messages, and messages with a consumer whose bodies were given up meanwhile:
        # if the consumer requeues one, nobody is left to repair it, and it would hold the
        # queue for ever.
        self._given_up = RangeSet()
        self._messages = messages

    @property
    def positions(self) -> RangeSet:
        """The ready messages. Not to be changed."""
        return self.line.positions

    # --- in and out ---

    def add(self, first: int, last: int, body_bytes: int) -> None:
        """Messages that have just been enqueued; their bodies are here."""
        self.line.add(first, last)
        self.body_bytes += body_bytes

    def put_back(self, ranges: Iterable[Range]) -> None:
        """Messages that a consumer had are back in their places."""
        ranges = [*ranges]
        self.line.update(ranges)
        for first, last in ranges:
            # Not the size at delivery: since then, bodies may have gone missing or come back.
            self.body_bytes += self._messages.bytes_in(first, last)
            if self._given_up:
                self._put_aside(self._given_up.intersection(first, last))

    def take_all(self) -> list[Range]:
        """Takes every ready message, visible or not, held or not."""
        taken = self.positions.ranges()
        self.line.clear()
        self.body_bytes = 0
        return taken

    def take_below(self, end: int) -> list[Range]:
        """Takes every ready message below `end`, held or not."""
        if not end or not self.positions:
            return []
        taken = self.positions.intersection(0, end - 1)
        for first, last in taken:
            self.body_bytes -= self._messages.bytes_in(first, last)
        self.line.subtract(taken)
        return taken

    def take_ranges(self, ranges: Iterable[Range]) -> list[Range]:
        """Takes those of `ranges` that are ready, held or not."""
        taken = [part for each in ranges for part in self.positions.intersection(*each)]
        for first, last in taken:
            self.body_bytes -= self._messages.bytes_in(first, last)
        self.line.subtract(taken)
        return taken

    def take_excess(self, visible_below: int, limits: LengthLimits) -> list[Range]:
        """Takes visible messages until no more than may be are left."""
        positions = self.positions
        hidden = positions.intersection(visible_below, max(visible_below, positions.last))
        over = over_bytes = 0
        if limits.messages_max is not None:
            over = len(positions) - numbers_in(hidden) - limits.messages_max
        if limits.bytes_max is not None:
            of_hidden = sum(self._messages.bytes_in(*each) for each in hidden)
            over_bytes = self.body_bytes - of_hidden - limits.bytes_max
        if over <= 0 and over_bytes <= 0:
            return []
        parts = (
            (first, min(last, visible_below - 1))
            for first, last in self.line.cheapest_first()
            if first < visible_below
        )
        found = first_ones(parts, over, over_bytes, self._messages)
        # The subtraction below wants them in order: levels aren't.
        return self.take_ranges(sorted(found))

    def take_damaged(self) -> list[Range]:
        """Takes every damaged message. They stay given up until `removed`."""
        taken = self.damaged.ranges()
        self.damaged.clear()
        return taken

    def removed(self, ranges: Iterable[Range]) -> None:
        """These are live no more: their numbers mean nothing from now on."""
        if self._given_up:
            self._given_up.subtract(ranges)

    # --- from the front ---

    def has_visible(self, visible_below: int) -> bool:
        return bool(self.positions) and self.positions.first < visible_below

    def is_held(self, visible_below: int) -> bool:
        """Whether the next message is missing, so that nothing can be delivered."""
        part = self.line.next_part(visible_below)
        return part is not None and part[0] in self._messages.missing

    def front_bytes(self, visible_below: int) -> int:
        """The size of the next message's body, 0 if that is missing; there is a visible one."""
        part = self.line.next_part(visible_below)
        assert part is not None
        return self._messages.bytes_in(part[0], part[0])

    def take(
        self,
        visible_below: int,
        *,
        messages_max: int,
        bytes_max: int,
        first_bytes_max: int | None,
        runs_max: int | None = None,
    ) -> list[Run]:
        """Takes visible messages off the front, no more than `messages_max`, and no more than
        `bytes_max` of bodies and properties after the first one; about `runs_max` runs, if given.

        The first one has a limit of its own: `first_bytes_max`, or none (None). Else a message
        that is larger than a turn, or than a whole prefetch, would never be delivered.
        """
        taken: list[Run] = []
        next_bytes_max = first_bytes_max
        runs_left = sys.maxsize if runs_max is None else runs_max
        while messages_max > 0 and runs_left > 0:
            parts = self.line.next_parts(visible_below, min(runs_left, PARTS_MAX))
            runs = self._fetch(parts, messages_max, bytes_max, next_bytes_max, runs_left)
            # All at once: each one taken out by itself moves all behind it.
            self.line.subtract([run.positions for run in runs])
            for run in runs:
                self.body_bytes -= run.block.body_bytes()
                bytes_max -= run.block.sent_bytes()
                messages_max -= run.block.count
            taken += runs
            if not runs or runs[-1].last_position != parts[-1][1]:
                break
            next_bytes_max = bytes_max
            runs_left -= len(runs)
        return taken

    def _fetch(
        self,
        parts: Sequence[Range],
        messages_max: int,
        bytes_max: int,
        next_bytes_max: int | None,
        runs_max: int,
    ) -> list[Run]:
        """The messages of these parts, as far as the limits go; see `take`."""
        taken: list[Run] = []
        # Each by itself: between them are messages that consumers have, or of another priority, and
        # those are live, so the reader would give them too.
        for first, last in parts:
            while first <= last:
                if messages_max <= 0 or len(taken) >= runs_max:
                    return taken
                if next_bytes_max is not None and (
                    self._messages.bytes_in(first, first) > next_bytes_max
                ):
                    return taken
                runs = self._messages.fetch(
                    first, last, bytes_max=max(bytes_max, 0), messages_max=messages_max
                )
                if not runs:
                    self._assert_missing(first)
                    return taken
                for run in runs:
                    bytes_max -= run.block.sent_bytes()
                    messages_max -= run.block.count
                taken += runs
                first = runs[-1].last_position + 1
                next_bytes_max = bytes_max
        return taken

    def peek(self, visible_below: int, *, messages_max: int, bytes_max: int) -> list[Run]:
        """The runs that `take` would give for a first message of any size; they stay ready."""
        runs: list[Run] = []
        for first, last in self.line.parts(visible_below):
            while first <= last:
                too_large = runs and self._messages.bytes_in(first, first) > bytes_max
                if messages_max <= 0 or too_large:
                    return runs
                part = self._messages.read(
                    first, last, bytes_max=bytes_max, messages_max=messages_max
                )
                if not part:
                    self._assert_missing(first)
                    return runs
                for run in part:
                    messages_max -= run.block.count
                    bytes_max -= run.block.sent_bytes()
                first = part[-1].last_position + 1
                runs += part
        return runs

    def _assert_missing(self, position: int) -> None:
        # A reader that gives nothing for a message that is there would hold the queue for
        # ever, without a sign.
        assert position in self._messages.missing, f"ready position {position} has no body"

    # --- damage ---

    def recount(self) -> None:
        """More bodies are missing, and don't count any more."""
        # All anew: the loss is told once for many positions, and without saying which.
        self.body_bytes = self._bytes_of(self.positions)

    def filled(self, first: int, last: int) -> None:
        """The bodies of `first..last`, all of them missing until now, are here again."""
        self._given_up.remove(first, last)
        parts = self.damaged.intersection(first, last)
        self.damaged.remove(first, last)
        # Behind them, messages may have been delivered meanwhile. Giving up accepted that.
        self.line.update(parts)
        for part in self.positions.intersection(first, last):
            self.body_bytes += self._messages.bytes_in(*part)

    def give_up(self, ranges: Iterable[Range]) -> None:
        """No replica has the bodies of these missing messages: the queue goes on without."""
        for first, last in ranges:
            self._given_up.add(first, last)
            self._put_aside(self.positions.intersection(first, last))

    def is_given_up(self, position: int) -> bool:
        """Whether no replica has the body of this live message, whoever has the message."""
        return position in self._given_up

    def _put_aside(self, parts: list[Range]) -> None:
        # Their bodies are missing: they are not in `body_bytes`.
        self.line.subtract(parts)
        self.damaged.update(parts)

    def check(self) -> None:
        """Costs a look at every message."""
        self.line.check()
        for positions in (self.damaged, self._given_up):
            positions.check()
        for first, last in self.damaged:
            assert self._given_up.contains_all(first, last)
        for first, last in self._given_up:
            assert self._messages.missing.contains_all(first, last)
            assert not self.positions.intersection(first, last)
        assert self.body_bytes == self._bytes_of(self.positions)

    def _bytes_of(self, ranges: RangeSet) -> int:
        return sum(self._messages.bytes_in(first, last) for first, last in ranges)
