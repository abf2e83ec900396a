"""The pulls of a consume stream, which are answered in order, one after the other.

The stream reads on meanwhile: acks behind a pull are settled at once, and a client that has died is
noticed. A pull waits while the stream has more to send than it may: otherwise a client that pulls
and doesn't read would have the node hold as much as its prefetch allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import PULLS_WAITING_MAX
from ringmq_base.notifier import Notifier
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.doors.grpc.deliveries import pulled_response
from ringmq_node.doors.grpc.status import reason_to_wire, told
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire import WireMessage


class Pulls:
    """`run` is a task of the stream."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        # The first one is in hand, unless the stream has too much to send.
        self._asked: deque[broker.Pull] = deque()
        self._is_held = False
        self._has_ended = False
        self._changed = Notifier()

    @property
    def waiting(self) -> int:
        """How many have no answer yet."""
        return len(self._asked)

    def ask(self, pull: broker.Pull) -> None:
        """Raises `BrokerError` if the stream doesn't pull, or too many wait already."""
        self._consuming.check_pulls()
        if len(self._asked) == PULLS_WAITING_MAX:
            raise BrokerError(
                Reason.LIMIT_EXCEEDED,
                f"{PULLS_WAITING_MAX} pulls of this stream wait for their answers, and no more may",
                limit="pulls",
            )
        self._asked.append(pull)
        self._changed.notify()

    def hold(self, held: bool) -> None:
        """Whether the stream has more to send than it may."""
        self._is_held = held
        self._changed.notify()

    async def run(self, put: Callable[[WireMessage, bool], None]) -> None:
        """Gives the answers to `put`, and whether they have messages, until it is cancelled."""
        while True:
            while not self._asked or self._is_held:
                await self._changed.wait()
            answer = await self._answer(self._asked[0])
            self._asked.popleft()
            # Behind Moved comes nothing.
            if not (self._has_ended or self._consuming.has_moved):
                put(*answer)

    def end(self) -> None:
        """Nobody reads answers from now on."""
        self._has_ended = True

    async def _answer(self, pull: broker.Pull) -> tuple[WireMessage, bool]:
        try:
            got = await self._consuming.pull(pull.messages_max, pull.bytes_max)
        except BrokerError as error:
            # The stream lives on, and what it holds stays with it.
            refused = broker.Pulled(
                reason=reason_to_wire(error.reason), message=told(error.message)
            )
            return broker.ConsumeResponse(pulled=refused).SerializeToString(), False
        return pulled_response(got.runs, messages_ready=got.messages_ready), bool(got.runs)
