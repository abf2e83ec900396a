"""The bounds of the port that clients and other nodes call."""

from __future__ import annotations

from ringmq_base.limits import MIB
from ringmq_wire import WireOptions

# Bytes that may wait on one stream before its sender pauses, and more than one message above which
# a sender that doesn't is refused.
SEND_BYTES_HIGH = 256 * 1024
SEND_BYTES_MAX = 64 * MIB
# Calls of one connection: a client process shares it among its publishers and consumers.
STREAMS_MAX = 10_000
KEEPALIVE_S = 30.0
KEEPALIVE_TIMEOUT_S = 20.0


def wire_options(message_bytes_max: int) -> WireOptions:
    return WireOptions(
        message_bytes_max=message_bytes_max,
        # The order of what waits is fixed once a stream has it: links and sessions keep theirs.
        send_bytes_high=SEND_BYTES_HIGH,
        send_bytes_max=message_bytes_max + SEND_BYTES_MAX,
        header_list_bytes_max=64 * 1024,
        header_block_bytes_max=128 * 1024,
        streams_max=STREAMS_MAX,
        # A caller whose machine is gone keeps its calls open no longer than this.
        keepalive_s=KEEPALIVE_S,
        keepalive_timeout_s=KEEPALIVE_TIMEOUT_S,
    )
