"""How many refused messages wait as dead letters: a bound for `reject-publish-dlx`. Pure.

A full queue refuses messages for as long as its publishers try. Each of them becomes a letter, and
stays on every replica's disk until its dead-letter target has it. While the target is down, nothing
but this bound stops them. Beyond it a message is refused without a letter, and counted: its
publisher is told in either case that the queue hasn't got it.

Letters leave nearly in order, so they are kept as the runs in which they came, and a run counts
until its last letter is gone. Runs are looked at only when the queue refuses messages.
"""

from __future__ import annotations

from collections import deque

from ringmq_base.limits import MIB
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.run import Messages
from ringmq_node.queue.state import ReplicatedState

# Of one queue. A batch that finds any room left passes whole.
REFUSED_MESSAGES_MAX = 10_000
REFUSED_BYTES_MAX = 64 * MIB


class RefusedLetters:
    """Of one mastership. Begins with the letters that the masters before it have left."""

    def __init__(self, state: ReplicatedState, messages: Messages) -> None:
        # Messages that were refused without a letter.
        self.dropped_total = 0
        self._state = state
        # First and last position, and bytes of bodies.
        self._runs: deque[tuple[int, int, int]] = deque()
        self._messages = self._bytes = 0
        for run in () if state.doomed is None else state.doomed.runs:
            # Among them are those that a drop-head has dropped: the rules may have changed.
            if run.reason is DeathReason.MAXLEN:
                self.add(run.first, run.last, messages.bytes_in(run.first, run.last))

    def add(self, first: int, last: int, size_bytes: int) -> None:
        self._runs.append((first, last, size_bytes))
        self._messages += last - first + 1
        self._bytes += size_bytes

    @property
    def has_room(self) -> bool:
        doomed = self._state.doomed
        while self._runs:
            first, last, size_bytes = self._runs[0]
            if doomed is not None and doomed.positions.intersection(first, last):
                break
            self._runs.popleft()
            self._messages -= last - first + 1
            self._bytes -= size_bytes
        return self._messages < REFUSED_MESSAGES_MAX and self._bytes < REFUSED_BYTES_MAX
