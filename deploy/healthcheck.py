#!/opt/ringmq/bin/python
"""Ask the node in this container whether it serves; the exit code is the answer.

It speaks the standard gRPC health protocol to `RINGMQ_LISTEN`, as every orchestrator's own probe
would: 0 for SERVING, 1 for anything else, with the reason on stderr.
"""

import os
import sys

import grpc

DEADLINE_S = 2.0

# grpc.health.v1 by hand: the request for the whole server is the empty message, the answer is
# field 1, a varint, SERVING = 1. A probe that runs every few seconds needn't load protobuf.
CHECK_METHOD = "/grpc.health.v1.Health/Check"
CHECK_WHOLE_SERVER = b""
SERVING = b"\x08\x01"


def probe_address(listen: str) -> str:
    """Where a node that listens on `listen` is reached from inside its container.

    `0.0.0.0:7800` and `[::]:7800` accept on every interface and are no address to call.
    """
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]") else listen


def why_not_serving(address: str, deadline_s: float = DEADLINE_S) -> str | None:
    """None if the node at `address` answers SERVING within the deadline, else its answer."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            CHECK_METHOD,
            request_serializer=lambda message: message,
            response_deserializer=lambda message: message,
        )
        try:
            answer = check(CHECK_WHOLE_SERVER, timeout=deadline_s)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return None if answer == SERVING else f"it answers, but is not SERVING: {answer.hex()}"


def main() -> int:
    """0 if the node in this container serves, else 1 and the reason."""
    address = probe_address(os.environ.get("RINGMQ_LISTEN", "0.0.0.0:7800"))
    if reason := why_not_serving(address):
        print(f"{address}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
