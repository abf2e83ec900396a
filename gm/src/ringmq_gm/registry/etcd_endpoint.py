"""One member of an etcd cluster, and calls to it that end with an answer or with an error.

grpc.aio takes a unary call for a success that ended with the status OK and without a message: it
writes an ERROR to the log and returns None, in place of an answer of its type. A call in flight
while a partition healed has ended so. Nobody knows whether such a call was carried out, and that
is what UNKNOWN says here. An answer that can't be decoded is None to grpc.aio, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
import grpc.aio

from ringmq_gm.registry.base import VALUE_BYTES_MAX
from ringmq_gm.registry.etcdpb import rpc_pb2_grpc

# How many entries one answer may bring; a list is read in pages of this many.
PAGE_ENTRIES_MAX = 256

_OPTIONS = (
    ("grpc.max_receive_message_length", (PAGE_ENTRIES_MAX + 1) * VALUE_BYTES_MAX),
    # Gives up on a connection attempt, and tries anew, within a call's deadline.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A connection belongs to one registry, and repeats nothing behind its back.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # Etcd's floor for pings is 5 s. Watches notice a dead endpoint sooner, by themselves.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
)


class Endpoint:
    """One member of the etcd cluster, at the address where it serves clients."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        # Stubs call no more of a channel than what `_Answering` has.
        answering = cast(grpc.aio.Channel, _Answering(self.channel))
        self.kv = rpc_pb2_grpc.KVStub(answering)
        self.watch = rpc_pb2_grpc.WatchStub(answering)
        self.lease = rpc_pb2_grpc.LeaseStub(answering)

    def is_ready(self) -> bool:
        """Whether the connection is open; begins to open it otherwise."""
        return self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY


class _Answering:
    """A channel for generated stubs: see the module."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.stream_stream = channel.stream_stream

    def unary_unary(
        self, method: str, *, response_deserializer: Callable[[bytes], Any], **options: Any
    ) -> Callable[..., Awaitable[Any]]:
        def decode(raw: bytes | None) -> Any:
            # Said here, without an ERROR in the log: `call` tells of it.
            return None if raw is None else response_deserializer(raw)

        made = self._channel.unary_unary(method, response_deserializer=decode, **options)

        async def call(request: Any, **options: Any) -> Any:
            answer = await made(request, **options)
            if answer is None:
                raise grpc.aio.AioRpcError(
                    grpc.StatusCode.UNKNOWN,
                    grpc.aio.Metadata(),
                    grpc.aio.Metadata(),
                    "the call has ended well, but without an answer",
                )
            return answer

        return call
