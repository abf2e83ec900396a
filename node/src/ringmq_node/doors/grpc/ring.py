"""`ringmq.v1.Ring`, but for its links: state and bodies for other replicas of a queue.

The links of the ring are answered by `ringmq_gm`. These calls serve replicas that join, and
replicas that have found bodies damaged.
"""

from __future__ import annotations

import asyncio

from ringmq.v1 import common_pb2 as common
from ringmq.v1 import ring_pb2 as wire
from ringmq_base.limits import MIB
from ringmq_base.pieces import Pieces
from ringmq_gm import Role
from ringmq_node.doors.grpc.peers import RING, STATE_DEADLINE_S
from ringmq_node.doors.grpc.service import Context, parse, routes
from ringmq_node.doors.grpc.wire import digests_to_wire, ranges_from_wire, state_to_wire
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.run import Run
from ringmq_node.replica.catchup import FETCH_BYTES_MAX
from ringmq_node.replica.hosting import Hosting
from ringmq_node.replica.reading import read_whole
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import QueueStore, StoreError
from ringmq_wire import Accept

# One message of the answer.
ANSWER_BYTES_MAX = MIB
ANSWER_MESSAGES_MAX = 4096


class FetchService:
    """Serves the replicas of this node to other members of their rings."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    def routes(self) -> dict[str, Accept]:
        return routes(
            RING,
            unary={"FetchState": self._state, "DigestMessages": self._digests},
            unary_stream={"FetchMessages": self._messages},
        )

    def _source(self, queue_id: str) -> Replica:
        replica = self._hosting.replicas.get(queue_id)
        if replica is None or replica.ring.role not in (Role.MASTER, Role.MIRROR):
            raise BrokerError(Reason.NOT_MASTER, f"no synchronised replica of {queue_id} is here")
        return replica

    async def _state(self, data: bytes, context: Context) -> bytes:
        request = parse(wire.FetchStateRequest, data)
        replica = self._source(request.queue)
        async with asyncio.timeout(context.call.time_remaining() or STATE_DEADLINE_S):
            await replica.wait_number(request.number_min)
        # A copy, taken in one turn: ops are applied while it is packed, and a state of two moments
        # is no state.
        response = await state_to_wire(replica.store.state.copy())
        # Megabytes are copied once more: a piece by itself.
        await asyncio.sleep(0)
        return response.SerializeToString()

    async def _digests(self, data: bytes, context: Context) -> bytes:
        request = parse(wire.DigestMessagesRequest, data)
        replica = self._source(request.queue)
        async with asyncio.timeout(context.call.time_remaining() or STATE_DEADLINE_S):
            await replica.wait_number(request.number_min)
        digests = await replica.digests(request.first_position, request.last_position)
        return digests_to_wire(digests).SerializeToString()

    async def _messages(self, data: bytes, context: Context) -> None:
        request = parse(wire.FetchMessagesRequest, data)
        store = self._source(request.queue).store
        left = min(request.bytes_max or FETCH_BYTES_MAX, FETCH_BYTES_MAX)
        answer = wire.FetchMessagesResponse()
        answer_bytes = 0
        lacking: list[common.Range] = []
        pieces = Pieces()
        for first, last in ranges_from_wire(request.positions):
            while left > 0 and first <= last:
                runs = _read(store, first, last, bytes_max=min(left, ANSWER_BYTES_MAX))
                if not runs:
                    # Either nothing more is live here, or the next live body is missing.
                    gaps = store.missing.intersection(first, last)
                    if not gaps:
                        break
                    lacking.append(common.Range(first=gaps[0][0], last=gaps[0][1]))
                    first = gaps[0][1] + 1
                for run in runs:
                    size = run.block.sent_bytes()
                    # Small runs share an answer: a busy joiner needs several turns of its loop for
                    # each, however little it brings.
                    if answer.runs and answer_bytes + size > ANSWER_BYTES_MAX:
                        await context.write(answer.SerializeToString())
                        answer, answer_bytes = wire.FetchMessagesResponse(), 0
                    answer.runs.add(
                        first_position=run.first_position,
                        count=run.block.count,
                        block=run.block.data,
                        transient=run.transient,
                    )
                    answer_bytes += size
                    left -= size
                    first = run.first_position + run.block.count
                await pieces.step()
        if answer.runs or lacking:
            answer.missing.extend(lacking)
            await context.write(answer.SerializeToString())


def _read(store: QueueStore, first: int, last: int, *, bytes_max: int) -> list[Run]:
    try:
        return read_whole(
            store, first, last, bytes_max=bytes_max, messages_max=ANSWER_MESSAGES_MAX, ahead=False
        )
    except StoreError as error:
        raise BrokerError(Reason.STORE_FAILED, str(error)) from error
