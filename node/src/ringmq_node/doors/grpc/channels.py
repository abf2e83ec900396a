"""One gRPC channel to each other node."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc

from ringmq_base.limits import MIB
from ringmq_node.doors.grpc.status import no_answer

# How long a call waits for a connection that is being set up.
CONNECT_S = 2.0
_UNREACHABLE = (
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)


class PeerChannels:
    """Opened at the first use, and kept until `close`."""

    def __init__(self, message_bytes_max: int) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._options = [
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
            # The window of a stream. With the default, 64 KiB, an answer with bodies for a joiner
            # takes as many turns of both loops as it has windows, and on busy nodes each is long.
            ("grpc.http2.lookahead_bytes", MIB),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.initial_reconnect_backoff_ms", 50),
            # This option also bounds the time in which a connection has to come about. Its default
            # is 20 s: calls would wait for an attempt that was begun while the network was cut,
            # long after the network has healed.
            ("grpc.min_reconnect_backoff_ms", 2000),
            # Finds connections that a network cut has broken: TCP alone takes minutes for that.
            ("grpc.keepalive_time_ms", 5000),
            ("grpc.keepalive_timeout_ms", 2000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def to(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


async def wait_connected(channel: grpc.aio.Channel) -> None:
    """Raises `BrokerError` (NO_MASTER) if the other end can't be reached."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            state = channel.get_state(try_to_connect=True)
            while state not in _UNREACHABLE:
                if state is grpc.ChannelConnectivity.READY:
                    return
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    raise no_answer()
