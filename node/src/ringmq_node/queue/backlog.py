"""How much of a queue waits as dead letters: bounds for what comes in. Pure.

Letters stay on every replica's disk until their target has them. While the target is down:

* a full queue with `reject-publish-dlx` would take refused messages for as long as its publishers
  try. `RefusedLetters` bounds these. Beyond it a message is refused without a letter, and counted:
  its publisher is told in either case that the queue hasn't got it;
* messages that expire, are dropped or rejected were confirmed, and none of them may go. So
  `LetterBacklog` bounds what comes in: beyond it publishers wait, or are refused by a queue that
  refuses.

Letters leave nearly in order, so they are kept as the runs in which they came, and a run counts
until its last letter is gone. Runs are looked at only while the bound seems to be reached.
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
# Of all its letters, the refused ones too: twice as many, so that those alone hold nobody.
LETTERS_MESSAGES_MAX = 20_000
LETTERS_BYTES_MAX = 128 * MIB


class LetterBacklog:
    """Of one mastership. Begins with the letters that the masters before it have left."""

    def __init__(self, state: ReplicatedState, messages: Messages) -> None:
        self._state = state
        # First and last position, and bytes of bodies.
        self._runs: deque[tuple[int, int, int]] = deque()
        self._messages = self._bytes = 0
        for run in () if state.doomed is None else state.doomed.runs:
            if self._counts(run.reason):
                self.add(run.first, run.last, messages.bytes_in(run.first, run.last))

    def _counts(self, reason: DeathReason) -> bool:
        return True

    def _is_over(self) -> bool:
        return self._messages >= LETTERS_MESSAGES_MAX or self._bytes >= LETTERS_BYTES_MAX

    def add(self, first: int, last: int, size_bytes: int) -> None:
        self._runs.append((first, last, size_bytes))
        self._messages += last - first + 1
        self._bytes += size_bytes

    @property
    def has_room(self) -> bool:
        doomed = self._state.doomed
        while self._runs and self._is_over():
            first, last, size_bytes = self._runs[0]
            if doomed is not None and doomed.positions.intersection(first, last):
                return False
            self._runs.popleft()
            self._messages -= last - first + 1
            self._bytes -= size_bytes
        return not self._is_over()


class RefusedLetters(LetterBacklog):
    """Those among them that the queue had no room for."""

    def __init__(self, state: ReplicatedState, messages: Messages) -> None:
        super().__init__(state, messages)
        # Messages that were refused without a letter.
        self.dropped_total = 0

    def _counts(self, reason: DeathReason) -> bool:
        # Among them are those that a drop-head has dropped: the rules may have changed.
        return reason is DeathReason.MAXLEN

    def _is_over(self) -> bool:
        return self._messages >= REFUSED_MESSAGES_MAX or self._bytes >= REFUSED_BYTES_MAX
