"""The registry away, for several reasons at once: it is back when the last of them is over."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol


class Outage(Enum):
    # It revokes, when it goes on, what has run out meanwhile.
    STOPPED = "stopped"
    # It gives each lease its whole time again.
    KILLED = "killed"


class Process(Protocol):
    """What is done to a registry's process."""

    @property
    def is_running(self) -> bool: ...
    def kill(self) -> None: ...
    def launch(self) -> None: ...
    def stop(self) -> None: ...
    def resume(self) -> None: ...


class Outages:
    """See the module."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lasting: list[Outage] = []
        self._lock = asyncio.Lock()

    async def take_away(self, outage: Outage, for_s: float) -> None:
        """Returns when this one is over; others may last."""
        self._lasting.append(outage)
        try:
            await self._apply()
            await asyncio.sleep(for_s)
        finally:
            self._lasting.remove(outage)
        await self._apply()

    async def _apply(self) -> None:
        process, lasting = self._process, self._lasting
        async with self._lock:
            if Outage.KILLED in lasting:
                await asyncio.to_thread(process.kill)
                return
            if not process.is_running:
                process.launch()
            if Outage.STOPPED in lasting:
                process.stop()
            else:
                process.resume()
