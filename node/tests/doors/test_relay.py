"""What a relayed call says when the master's node doesn't answer."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from loops import run
from node.tests.broker.test_deleting import with_node

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc.broker import BrokerService
from ringmq_node.doors.grpc.relay import Channels, relay_unary
from ringmq_node.model.reasons import BrokerError
from ringmq_node.node import Node
from ringmq_node.replica.replica import Replica

CONTEXT = SimpleNamespace(time_remaining=lambda: 5.0, invocation_metadata=lambda: ())
NOTHING = grpc.aio.Metadata()


class Cut:
    """A channel that breaks when the call has been sent."""

    def __init__(self) -> None:
        self.calls = 0

    def get_state(self, try_to_connect: bool) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    def unary_unary(self, method: str) -> Any:
        return self._call

    async def _call(self, data: bytes, **_: Any) -> bytes:
        self.calls += 1
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, NOTHING, NOTHING, "socket closed")


async def reason_of(work: Any) -> str:
    with pytest.raises(BrokerError) as caught:
        await work
    return common.Reason.Name(caught.value.reason)


@pytest.mark.parametrize(
    ("method", "mode", "reason"),
    [
        ("GetMessages", broker.GET_MODE_REMOVE, "REASON_OUTCOME_UNKNOWN"),
        ("GetMessages", broker.GET_MODE_PEEK, "REASON_NO_MASTER"),
        ("GetQueue", 0, "REASON_NO_MASTER"),
        ("PurgeQueue", 0, "REASON_OUTCOME_UNKNOWN"),
        ("DeleteQueue", 0, "REASON_OUTCOME_UNKNOWN"),
    ],
)
def test_what_may_have_been_done_is_unknown(
    method: str, mode: broker.GetMode.ValueType, reason: str
) -> None:
    """NO_MASTER says that nothing was done: clients repeat whatever it was."""
    kind = getattr(broker, f"{method}Request")
    request = kind(queue="q", mode=mode) if mode else kind(queue="q")
    channel = Cut()

    async def elsewhere(queue: str, context: Any) -> str:
        return "there"

    async def main() -> None:
        node = SimpleNamespace(
            check_open=lambda: None,
            channels=SimpleNamespace(to=lambda address: channel),
            config=SimpleNamespace(
                node="a", message_bytes_max=1, properties_bytes_max=1, heartbeat_s=1
            ),
        )
        service = BrokerService(cast(Any, node))
        cast(Any, service)._elsewhere = elsewhere
        handler = service._at_master(method, kind, cast(Any, None))
        assert await reason_of(handler(request.SerializeToString(), cast(Any, CONTEXT))) == reason
        assert channel.calls == 1

    run(main())


def test_what_can_not_be_sent_was_not_done() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        async def main() -> None:
            channels = Channels(1024)
            work = relay_unary(channels, address, "/x/Y", b"", cast(Any, CONTEXT), repeatable=False)
            assert await reason_of(work) == "REASON_NO_MASTER"
            await channels.close()

        run(main())


def test_what_was_removed_is_handed_out_though_the_master_moves(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Replica.take

    async def then_moved(self: Replica, messages_max: int, bytes_max: int) -> Any:
        runs = await taking(self, messages_max, bytes_max)
        self.master = None
        return runs

    async def work(node: Node, client: ringmq.Client) -> None:
        async with client.publisher("q") as publisher:
            await publisher.publish(b"only")
        monkeypatch.setattr(Replica, "take", then_moved)
        got = await client.get_messages("q", 1, remove=True)
        assert got.bodies == [b"only"]

    with_node(tmp_path, work)
