"""A connection to one node, with its stubs.

One HTTP/2 connection per address, made when a call wants it, and again when it is lost:
* no keepalive: streams have heartbeats of their own and calls have deadlines;
* short pauses between attempts: gRPC's own (1 s to 2 min) would outlast a failover;
* no proxy: nodes are addressed directly, even if the environment names one;
* no limit on requests: batches are cut to the limits that the node gives.
"""

from __future__ import annotations

import random
from typing import Any

from ringmq.calls.identity import Identity
from ringmq.calls.stubs import StubChannel
from ringmq.reading.split import SplitAnswer
from ringmq.v1.admin_pb2_grpc import AdminStub
from ringmq.v1.broker_pb2_grpc import BrokerStub
from ringmq.v1.reader_pb2 import BrowseRequest
from ringmq.v1.reader_pb2_grpc import ReaderStub
from ringmq_base.limits import KIB, MIB
from ringmq_wire import Code, RpcError, WireChannel, WireOptions
from ringmq_wire.backoff import Backoff

#: Of one connection to one node.
CONNECT_S = 2.0
RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 0.5
#: Of one call: so much a node sends ahead of what the program takes. Four pieces of a browse.
STREAM_WINDOW_BYTES = 4 * MIB

# Any answer will do, a refusal too.
CHECK_PATH = "/grpc.health.v1.Health/Check"


async def answers(wire: WireChannel, timeout_s: float) -> bool:
    """Whether the node at the other end answers anything within that time."""
    try:
        await wire.unary(CHECK_PATH, b"", timeout_s=timeout_s)
    except RpcError as failure:
        return failure.status.code is not Code.DEADLINE_EXCEEDED
    return True


class NodeChannel:
    """The channel is made at once, but connects with the first call."""

    def __init__(self, address: str, receive_bytes_max: int, identity: Identity) -> None:
        self.address = address
        self.identity = identity
        self.wire = WireChannel(
            address,
            WireOptions(
                message_bytes_max=receive_bytes_max,
                # Else one piece of a browse would be on its way at a time.
                stream_window_bytes=STREAM_WINDOW_BYTES,
                # Errors may tell what each replica of a queue has.
                header_list_bytes_max=64 * KIB,
                header_block_bytes_max=128 * KIB,
            ),
            connect_timeout_s=CONNECT_S,
            backoff=Backoff(RECONNECT_FIRST_S, RECONNECT_MAX_S, random.Random()),
        )
        stubs: Any = StubChannel(self.wire, identity)
        self.broker = BrokerStub(stubs)
        self.admin = AdminStub(stubs)
        self.reader = ReaderStub(stubs)
        # As `reader.Browse`, for the encodings in which nearly all of an answer is one field.
        self.browse_rows = stubs.unary_stream(
            "/ringmq.v1.Reader/Browse",
            request_serializer=BrowseRequest.SerializeToString,
            response_deserializer=SplitAnswer.from_bytes,
        )

    async def answers(self, timeout_s: float) -> bool:
        """Whether the node answers anything within that time. A process that is stopped doesn't,
        though its kernel takes in what it is sent."""
        return await answers(self.wire, timeout_s)

    async def close(self) -> None:
        await self.wire.close()
