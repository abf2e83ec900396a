"""How much a peer may ask for that costs this side more than it costs the peer. Pure.

Each budget is a bucket that leaks: what counts fills it, time empties it, and so does honest work.
A peer may send as many PINGs or WINDOW_UPDATEs as it likes as long as data moves; without data, it
has a burst and a rate. What no budget counts: frames that end a stream, resets of calls that were
answered, and anything that a limit of its own bounds (header blocks, windows, streams).

    control   PING, SETTINGS, PRIORITY, unknown frames; emptied by frames with data or headers
              (CVE-2019-9512, CVE-2019-9515)
    updates   WINDOW_UPDATE; a DATA frame that was sent empties it by four (CVE-2019-9517)
    empty     DATA without data that doesn't end its stream; emptied by data (CVE-2019-9518)
    resets    streams that the peer reset within `RAPID_RESET_S` before any answer, or broke so that
              this side did; emptied by calls that end well (CVE-2023-44487, CVE-2025-8671)

Why resets of older streams don't count: thousands of calls that wait for one slow thing are given
up by their client together, and its other calls would end with them. A peer that waits so long has
no more calls begun than the limit of streams lets it have anyway.

Answers to PING and SETTINGS, credit and resets wait in memory while the peer doesn't read. Time
would empty the budgets meanwhile, so the waiting frames have a limit of their own
(`CONTROL_WAITING_MAX`). It isn't for what this side's application does, while the network takes
little: the heads of calls and of answers, and a client's resets.
"""

from __future__ import annotations

from ringmq_wire.codes import ErrorCode
from ringmq_wire.errors import ConnectionFault

# Control frames that wait because the peer doesn't read.
CONTROL_WAITING_MAX = 5_000
RAPID_RESET_S = 0.5


class Budget:
    """A leaking bucket."""

    __slots__ = ("_at", "_burst", "_per_s", "_what", "level")

    def __init__(self, what: str, *, burst: int, per_s: float) -> None:
        self._what = what
        self._burst = burst
        self._per_s = per_s
        # Nearly always 0 when data moves: `give_back` needs no call then.
        self.level = 0.0
        self._at = 0.0

    def count(self, now: float) -> None:
        """One more. Raises `ConnectionFault` if it is one too many."""
        if now > self._at:
            self.level = max(0.0, self.level - (now - self._at) * self._per_s)
        self._at = now
        self.level += 1
        if self.level > self._burst:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"more than {self._burst} {self._what}, at more than {self._per_s:g}/s",
            )

    def give_back(self, amount: int) -> None:
        """So much honest work was done."""
        if self.level:
            self.level = max(0.0, self.level - amount)


class FloodBudgets:
    """Those of one connection; see the module."""

    __slots__ = ("control", "empty", "resets", "updates")

    def __init__(self) -> None:
        self.control = Budget("control frames", burst=1_000, per_s=100)
        self.updates = Budget("window updates", burst=4_000, per_s=400)
        self.empty = Budget("frames without data", burst=200, per_s=20)
        self.resets = Budget("resets of unanswered calls", burst=1_000, per_s=100)

    def data_came(self) -> None:
        """A frame with data."""
        if self.empty.level or self.control.level:
            self.empty.give_back(1)
            self.control.give_back(1)
