"""Who waits for a report of the queue's core, by number: of one mastership."""

from __future__ import annotations

import asyncio

from ringmq_node.model.reasons import BrokerError, Reason


class Waits:
    """Each wait ends with its report, or with the mastership."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[None]] = {}

    def new(self, number: int) -> asyncio.Future[None]:
        """Done when `number` is told."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.keep(number, future)
        return future

    def keep(self, number: int, future: asyncio.Future[None]) -> None:
        self._futures[number] = future

    def leave(self, number: int) -> None:
        """Nobody waits under this number any more."""
        self._futures.pop(number, None)

    def told(self, number: int) -> None:
        future = self._futures.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    def end(self, queue: str) -> None:
        """The mastership has ended: nobody knows what the next one finds."""
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(
                    BrokerError(
                        Reason.OUTCOME_UNKNOWN,
                        f"queue {queue!r}: the master changed meanwhile",
                        queue=queue,
                    )
                )
