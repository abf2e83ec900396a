"""Exchanges, and keys of the default exchange, that name nothing which this node knows.

It may have been declared through another node a moment ago, and this node's watch be behind: to say
that there is none would lose the message. So the registry is asked. A flood of publishes to queues
that don't exist must not be a flood of calls: the node has one call at a time for queues and one
for exchanges, and at most one in `PAUSE_S`, for all names that have been asked for until then. A
name that isn't there is remembered for `AGAIN_S`; if it is declared meanwhile, the watch brings it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice

from ringmq_gm.registry.base import OPERATIONS_MAX, RegistryError
from ringmq_node.model.reasons import BrokerError

AGAIN_S = 1.0
PAUSE_S = 0.01
# The longest that a publish waits for an answer. Then it is as the watch has it.
ANSWER_S = 1.0
REMEMBERED_MAX = 10_000


class UnknownRecords:
    """By internal name. `ask` returns when this node has heard of those that exist."""

    def __init__(self, ask: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._ask = ask
        # When they were asked for, on the loop's clock; the last one last.
        self._asked: dict[str, float] = {}
        # Those that the next call asks for.
        self._wanted: dict[str, None] = {}
        self._turn = asyncio.Lock()
        self._called_at = -math.inf

    def may_be_new(self, name: str) -> bool:
        """Whether the registry may know of it, though this node doesn't."""
        asked_at = self._asked.get(name)
        return asked_at is None or asyncio.get_running_loop().time() > asked_at + AGAIN_S

    async def look_up(self, names: Collection[str]) -> None:
        """Returns when this node has heard of these, or the registry knows of none."""
        self._wanted |= dict.fromkeys(names)
        while any(name in self._wanted for name in names):
            async with self._turn:
                # Whoever had the turn before may have asked for them.
                if any(name in self._wanted for name in names):
                    await self._call()

    async def _call(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._called_at + PAUSE_S - loop.time())
        names = list(islice(self._wanted, OPERATIONS_MAX))
        done = names
        try:
            # Whatever is wrong: then it is as the watch has it. Data goes on without the registry.
            with suppress(BrokerError, RegistryError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await self._ask(names)
        except asyncio.CancelledError:
            # Others wait for the same answer.
            done = []
            raise
        finally:
            # Also when this has failed: whoever asks next must not fail by these names, too.
            self._called_at = loop.time()
            self._drop(done)

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            self._wanted.pop(name, None)
            self._asked.pop(name, None)
            self._asked[name] = self._called_at
        while len(self._asked) > REMEMBERED_MAX:
            del self._asked[next(iter(self._asked))]
