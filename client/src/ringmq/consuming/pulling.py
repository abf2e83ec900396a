"""The pulls of a consumer that have no answer yet, over its streams.

The node answers them in order. A stream that breaks takes its answers along, and the messages of
those that were on their way go back to the queue: on the next stream all are asked again.

Messages that come for a caller who waits no more go back to the queue at once. The next pull goes
out behind them: before, it would be given the messages behind those, and out of order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from ringmq.calls.requests import request_of
from ringmq.calls.status import from_reason
from ringmq.consuming.settling import Settling, Verb
from ringmq.errors import ProtocolError, RingMQError
from ringmq.model.messages import Batch
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import PULLS_WAITING_MAX


class Pulling:
    """Of one consumer that pulls."""

    def __init__(self, queue: str, settling: Settling) -> None:
        self._queue = queue
        self._settling = settling
        self._asked: deque[tuple[broker.Pull, asyncio.Future[Batch]]] = deque()
        # How many of them have gone out on the present stream: the first ones.
        self._written = 0
        self._generation = 0
        self._has_ended = False

    @property
    def is_awaited(self) -> bool:
        return any(not answer.done() for _, answer in self._asked)

    # --- calls of the consumer ---

    def ask(self, messages_max: int, bytes_max: int) -> asyncio.Future[Batch]:
        """Raises `BadRequestError` for values that the wire can't hold."""
        pull = request_of(broker.Pull, messages_max=messages_max, bytes_max=bytes_max)
        answer: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        self._asked.append((pull, answer))
        return answer

    def leave(self, answer: asyncio.Future[Batch]) -> None:
        """Its caller is gone, and may not have seen the answer."""
        answer.cancel()
        unwritten = [*self._asked][self._written :]
        for each in unwritten:
            if each[1] is answer:
                self._asked.remove(each)
        if not answer.cancelled() and answer.exception() is None:
            batch = answer.result()
            # Those of a stream that has ended are back.
            if batch.generation == self._generation and not self._settling.unknown(batch.positions):
                self._settling.note(Verb.REQUEUE, batch.positions)

    def end(self, reason: RingMQError) -> None:
        """Nobody waits for an answer from now on. Those of pulls that have gone out may still come:
        the stream goes on until the last acks are written."""
        self._has_ended = True
        for _, answer in self._asked:
            if not answer.done():
                answer.set_exception(reason.copy())

    # --- events of the stream ---

    def opened(self, generation: int) -> None:
        self._generation = generation
        # Those whose callers have gone are not asked again.
        self._asked = deque(each for each in self._asked if not each[1].done())
        self._written = 0

    def next_request(self) -> broker.ConsumeRequest | None:
        if self._written == len(self._asked) or self._written == PULLS_WAITING_MAX:
            return None
        if any(answer.done() for _, answer in islice(self._asked, self._written)):
            return None
        self._written += 1
        return broker.ConsumeRequest(pull=self._asked[self._written - 1][0])

    def answered(self, pulled: broker.Pulled) -> None:
        """The first one has its answer. Its messages are held by the caller from now on."""
        if not self._written:
            raise ProtocolError("the node answered a pull that was not asked")
        self._written -= 1
        _, answer = self._asked.popleft()
        if self._has_ended:
            # Its messages go back with the stream.
            return
        batch = Batch.from_wire(pulled.deliveries, self._queue, self._generation)
        self._settling.hand_out(batch.positions)
        if answer.done():
            self._settling.note(Verb.REQUEUE, batch.positions)
        elif pulled.reason:
            answer.set_exception(from_reason(pulled.reason, pulled.message))
        else:
            answer.set_result(batch)
