"""One channel to each other node."""

from __future__ import annotations

import random
from dataclasses import replace

from ringmq_node.doors.grpc.options import wire_options
from ringmq_wire import Metadata, WireChannel
from ringmq_wire.backoff import Backoff

# How long a connection may take to come about. With more, calls would wait for an attempt that was
# begun while the network was cut, long after the network has healed.
CONNECT_S = 2.0
RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 1.0
# Finds connections that a network cut has broken: TCP alone takes minutes for that. Without calls,
# too: the next call would be lost in such a connection.
KEEPALIVE_S = 5.0
KEEPALIVE_TIMEOUT_S = 2.0


class PeerChannels:
    """Opened at the first use, and kept until `close`."""

    def __init__(
        self, message_bytes_max: int, metadata: Metadata, unacknowledged_s: float | None = None
    ) -> None:
        """`metadata` goes with each call: it says which node calls. A connection that brings
        nothing for `unacknowledged_s` is given up, as those of the ring are: it has the streams
        of clients that can't reach the master themselves."""
        self._channels: dict[str, WireChannel] = {}
        self._options = replace(
            wire_options(message_bytes_max),
            keepalive_s=KEEPALIVE_S,
            keepalive_timeout_s=KEEPALIVE_TIMEOUT_S,
            keepalive_without_calls=True,
            unacknowledged_s=unacknowledged_s,
            metadata=metadata,
        )

    def to(self, address: str) -> WireChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = WireChannel(
                address,
                self._options,
                connect_timeout_s=CONNECT_S,
                backoff=Backoff(RECONNECT_FIRST_S, RECONNECT_MAX_S, random.Random()),
            )
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
