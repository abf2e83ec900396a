"""A connection to one node, with its stubs.

One HTTP/2 channel per address. Its options, and why:
* no HTTP/2 keepalive: streams have heartbeats of their own and calls have deadlines, so there is
  nothing that a server could answer with `too_many_pings`;
* short reconnect backoff: gRPC's own (1 s to 2 min) would outlast a failover;
* no proxy: nodes are addressed directly, even if the environment names one;
* no limit on requests: batches are cut to the limits that the node gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio

from ringmq.v1.admin_pb2_grpc import AdminStub
from ringmq.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    # These names are in the generated stubs only.
    from ringmq.v1.admin_pb2_grpc import AdminAsyncStub
    from ringmq.v1.broker_pb2_grpc import BrokerAsyncStub


class NodeChannel:
    """The channel is made at once, but connects with the first call."""

    def __init__(self, address: str, receive_bytes_max: int) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=_options(receive_bytes_max))
        self.broker: BrokerAsyncStub = BrokerStub(self.channel)
        self.admin: AdminAsyncStub = AdminStub(self.channel)


def _options(receive_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.initial_reconnect_backoff_ms", 50),
        # This one is also how long a connection may take to come about.
        ("grpc.min_reconnect_backoff_ms", 2000),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.enable_http_proxy", 0),
        # Two clients of one process don't share connections, nor their backoff.
        ("grpc.use_local_subchannel_pool", 1),
    ]
