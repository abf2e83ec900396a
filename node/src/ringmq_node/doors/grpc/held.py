"""The batches of one publish stream that were read, and that its queue doesn't take yet.

The stream is read on while it has credit at its queue (`resources.credit`), so that heartbeats and
the end of the stream are heard behind a batch that waits. Without credit it isn't read, and the
transport's window stops the client. A queue that takes batches as they come never has any here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from ringmq.v1 import broker_pb2 as broker
from ringmq_gm import RingClosedError
from ringmq_node.broker.publishing import Publishing
from ringmq_node.doors.grpc.blocked import BlockTeller
from ringmq_node.resources.credit import Credit, StreamCredit

logger = logging.getLogger(__name__)


class HeldBatches:
    """True while there are any."""

    def __init__(self, publishing: Publishing, credit: Credit, teller: BlockTeller) -> None:
        self._publishing = publishing
        self._credit = StreamCredit(credit)
        self._teller = teller
        # With their sizes in bytes.
        self._batches: deque[tuple[broker.PublishBatch, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._freed: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        # Also behind a failure: what comes now must not overtake those that were lost.
        return self._task is not None or self._failure is not None or self._closed

    def add(
        self,
        batch: broker.PublishBatch,
        size_bytes: int,
        publish: Callable[[broker.PublishBatch], None],
    ) -> None:
        """`publish`, the same for all of them, hands one over, and must not raise `BrokerError`."""
        if self._closed:
            # The reader has come back from a wait. Nobody would give back what is taken now.
            return
        self._credit.take(max(1, len(batch.bodies)), size_bytes)
        self._batches.append((batch, size_bytes))
        self._publishing.park(size_bytes)
        if self._task is None:
            self._task = asyncio.create_task(self._publish_all(publish), name="held batches")

    async def wait_credit(self) -> None:
        """Returns when another one may be added. Raises what went wrong with those before."""
        while self._task is not None and self._credit.is_blocked:
            self._freed = asyncio.get_running_loop().create_future()
            await self._freed
        if self._closed:
            raise RingClosedError("the stream is closed")
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """They are dropped: the client sends them again, on another stream."""
        self._publishing.park(-sum(size for _, size in self._batches))
        self._batches.clear()
        # The reader isn't cancelled yet, and must not add another one.
        self._closed = True
        # By the frames that it has passed, it refers to this object.
        self._failure = None
        if self._task is not None:
            self._task.cancel()

    async def _publish_all(self, publish: Callable[[broker.PublishBatch], None]) -> None:
        try:
            with self._teller.held():
                while self._batches:
                    batch, size_bytes = self._batches.popleft()
                    # From here on `wait_room` counts it, as long as it waits.
                    self._publishing.park(-size_bytes)
                    await self._publishing.wait_room(size_bytes)
                    publish(batch)
                    self._credit.processed(max(1, len(batch.bodies)), size_bytes)
                    self._wake()
        except RingClosedError as error:
            self._failure = error  # The session has heard `moved` by then.
        except Exception as error:
            self._failure = error
            logger.error("held batches of a publish stream: %r", error, exc_info=error)
        finally:
            self._task = None
            self._wake()

    def _wake(self) -> None:
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)
