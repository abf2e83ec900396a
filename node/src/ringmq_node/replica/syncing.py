"""Whether, and how fast, one replica fetches what it lacks; and how far it has come.

A replica that joins takes every op from then on, and the earlier bodies are fetched beside that
(`joining`). Policies say whether they are fetched at once (`AUTOMATIC`) or only when an operator
asks (`MANUAL`), and how many bytes a second. An operator may also stop a fetch that is under way.
Either way the replica is synchronised as soon as it lacks nothing: its missing messages may all
have been consumed meanwhile (*natural* synchronisation).

An operator's word holds until the replica is synchronised. It outlives a joining that begins again,
since the ring may change its view at any moment for reasons that he can't see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from enum import Enum, auto
from math import inf
from typing import cast

from ringmq_base.notifier import Notifier
from ringmq_node.model.info import SyncInfo, SyncPhase
from ringmq_node.model.settings import SyncMode, SyncSettings
from ringmq_node.replica.catchup import FETCH_BYTES_MAX
from ringmq_node.replica.fetching import Fetched, Lacking

# With a rate, one call brings about what the rate allows in this time. A call that was as large as
# without one would run into its deadline at the source.
CALL_S = 0.5


class Word(Enum):
    """An operator's last word about the fetching of one replica."""

    NONE = auto()
    FETCH = auto()
    STOP = auto()


class Pace:
    """Spreads bytes evenly over time. Pure; a second in which nothing was fetched isn't made up."""

    def __init__(self) -> None:
        self._free_at = -inf

    def pause_s(self, bytes_taken: int, rate_bytes: int | None, *, now: float) -> float:
        """How long to wait after these bytes, in seconds."""
        if rate_bytes is None:
            return 0.0
        self._free_at = max(self._free_at, now) + bytes_taken / rate_bytes
        return self._free_at - now


class Syncing:
    """Of one replica, for as long as it is open. On the event loop's thread."""

    def __init__(self, settings: SyncSettings) -> None:
        # Notified when `may_fetch` or the rate may have changed, and when a joining ends.
        self.changed = Notifier()
        self.settings = settings
        self._word = Word.NONE
        self._pace = Pace()
        self._is_joining = False
        self._has_state = False
        self._messages_fetched = 0
        self._bytes_fetched = 0

    # --- what is wanted ---

    @property
    def may_fetch(self) -> bool:
        """Whether bodies may be fetched now."""
        if self._word is Word.NONE:
            return self.settings.mode is SyncMode.AUTOMATIC
        return self._word is Word.FETCH

    @property
    def call_bytes_max(self) -> int:
        """How much one call to the source may bring."""
        rate = self.settings.rate_bytes_max
        return FETCH_BYTES_MAX if rate is None else max(1, min(FETCH_BYTES_MAX, int(rate * CALL_S)))

    def configure(self, settings: SyncSettings) -> None:
        """What the queue's policies say now."""
        if settings != self.settings:
            self.settings = settings
            self.changed.notify()

    def say(self, word: Word) -> None:
        """An operator wants the missing messages fetched now, or not."""
        self._word = word
        self.changed.notify()

    # --- one joining ---

    def begun(self) -> None:
        """The replica has joined its ring."""
        self._is_joining, self._has_state = True, False
        self._messages_fetched = self._bytes_fetched = 0

    def state_installed(self) -> None:
        """It knows which messages it lacks."""
        self._has_state = True

    def ended(self, *, synchronised: bool) -> None:
        """The joining is over; if the replica is synchronised, so is the operator's word."""
        self._is_joining = False
        if synchronised:
            self._word = Word.NONE
        self.changed.notify()

    async def paced(self, answers: AsyncIterator[Fetched]) -> AsyncIterator[Fetched]:
        """The answers of one call; ends when as much time has passed as its bytes may take."""
        loop = asyncio.get_running_loop()
        bytes_taken = 0
        # Whoever stops reading here ends the call at the source as well.
        async with aclosing(cast(AsyncGenerator[Fetched, None], answers)):
            async for answer in answers:
                if not isinstance(answer, Lacking):
                    block = answer[1]
                    bytes_taken += block.size_bytes
                    self._messages_fetched += block.count
                    self._bytes_fetched += block.size_bytes
                yield answer
        rate = self.settings.rate_bytes_max
        pause_s = self._pace.pause_s(bytes_taken, rate, now=loop.time())
        if pause_s > 0:
            # A stop, another rate or the end of the joining is not kept waiting.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.changed.wait()

    def info(self, messages_missing: int) -> SyncInfo | None:
        """How far it has come; None if it isn't joining."""
        if not self._is_joining:
            return None
        if not self._has_state:
            phase = SyncPhase.STATE
        elif self.may_fetch:
            phase = SyncPhase.FETCHING if messages_missing else SyncPhase.WRITING
        else:
            phase = SyncPhase.CANCELLED if self._word is Word.STOP else SyncPhase.MANUAL
        return SyncInfo(
            phase=phase,
            messages_missing=messages_missing,
            messages_fetched=self._messages_fetched,
            bytes_fetched=self._bytes_fetched,
        )
