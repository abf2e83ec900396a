"""Whose turn it is to fetch, and to take over.

A node catches up a few of its queues at a time. One that returns with thousands of queues joins all
of their rings at once. If it fetched everything at once as well, thousands of states and as many
calls for bodies would be in memory here, and on their way at the masters. So each fetch takes one
of a few turns: the state of a queue as one, and each call for bodies.

Calls for bodies come first, and a queue begins only when they leave a turn free. So those that
have begun are done one after the other, and not all of them at the end. A queue that pauses (its
policy limits the rate, or an operator has stopped it) holds no turn meanwhile.

A node that becomes the master of thousands of queues takes a few of them over in each turn of the
loop. The registry tells it a hundred views at once, and a hundred queues in one turn held the loop
for longer than any piece of work may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# A turn costs at most the bytes of one call (`catchup.FETCH_BYTES_MAX`), or one state.
CATCH_UPS_MAX = 8
# A hundred without messages took 83 ms of the loop, on a machine 1.5 times slower than ours.
TAKE_OVERS_PER_TURN = 16


class CatchUpTurns:
    """See the module. Turns of one kind are given in the order in which they were asked for."""

    def __init__(self, count: int = CATCH_UPS_MAX) -> None:
        self._free = count
        self._bodies: deque[asyncio.Future[None]] = deque()
        self._states: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many queues wait to begin."""
        return len(self._states)

    @asynccontextmanager
    async def state(self) -> AsyncIterator[None]:
        """A turn for the state of a queue that begins."""
        await self._take(self._states)
        try:
            yield
        finally:
            self._give_back()

    @asynccontextmanager
    async def bodies(self) -> AsyncIterator[None]:
        """A turn for one call."""
        await self._take(self._bodies)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, line: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The turn may have been given in the same moment: then it is the next one's.
            if not turn.cancelled():
                self._pass_on()
            elif turn in line:
                line.remove(turn)
            raise

    def _give_back(self) -> None:
        # In the next turn of the loop: until then the same queue may ask for its next one, and a
        # queue that has begun comes before one that hasn't.
        asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        for line in (self._bodies, self._states):
            while line:
                turn = line.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


class TakeOverTurns:
    """See the module. In the order in which they were asked for."""

    def __init__(self, per_turn: int = TAKE_OVERS_PER_TURN) -> None:
        self._per_turn = self._left = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ends = False

    async def turn(self) -> None:
        """Returns when the loop's turn has room for one more. What its caller has seen before may
        have changed by then."""
        if self._left:
            self._take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _take(self) -> None:
        self._left -= 1
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Those that wait come before others."""
        self._left, self._ends = self._per_turn, False
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():
                self._take()
                turn.set_result(None)
