#!/opt/ringmq/bin/python
"""Ask the node in this container whether it serves; the exit code is the answer.

It speaks the standard gRPC health protocol to `RINGMQ_LISTEN`, as every orchestrator's own probe
would: 0 for SERVING, 1 for anything else, with the reason on stderr.
"""

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEADLINE_S = 2.0


def probe_address(listen: str) -> str:
    """Where a node that listens on `listen` is reached from inside its container.

    `0.0.0.0:7800` and `[::]:7800` accept on every interface and are no address to call.
    """
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]") else listen


def main() -> int:
    """0 if the node says SERVING within the deadline, else 1."""
    address = probe_address(os.environ.get("RINGMQ_LISTEN", "0.0.0.0:7800"))
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        except grpc.RpcError as error:
            print(f"{address}: {error}", file=sys.stderr)
            return 1
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        print(f"{address}: {name}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
