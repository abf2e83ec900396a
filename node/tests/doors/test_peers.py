"""The outcome of a forwarded call when the master's node doesn't answer."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run
from node.tests.broker.test_deleting import with_node

import ringmq
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.peers import GrpcPeers
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode
from ringmq_node.node import Node
from ringmq_node.replica.mastership import Mastership
from ringmq_wire import Code, RpcError, RpcStatus

ANYTIME = {"deadline_s": 5.0}


class Cut:
    """A channel that breaks when the call has been sent."""

    def __init__(self) -> None:
        self.calls = 0

    async def unary(self, path: str, request: bytes, **_: Any) -> bytes:
        self.calls += 1
        raise RpcError(RpcStatus(Code.UNAVAILABLE, "socket closed"))


async def reason_of(work: Awaitable[object]) -> Reason:
    with pytest.raises(BrokerError) as caught:
        await work
    return caught.value.reason


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda peers: peers.get("b", "q", 1, 1, remove=True, **ANYTIME), Reason.OUTCOME_UNKNOWN),
        (lambda peers: peers.get("b", "q", 1, 1, remove=False, **ANYTIME), Reason.NO_MASTER),
        (lambda peers: peers.queue_info("b", "q", **ANYTIME), Reason.NO_MASTER),
        (lambda peers: peers.set_mode("b", "q", QueueMode.LAZY, **ANYTIME), Reason.NO_MASTER),
        (lambda peers: peers.purge("b", "q", **ANYTIME), Reason.OUTCOME_UNKNOWN),
        (
            lambda peers: peers.delete("b", "q", DeleteConditions(), **ANYTIME),
            Reason.OUTCOME_UNKNOWN,
        ),
    ],
    ids=["get and remove", "peek", "queue_info", "set_mode", "purge", "delete"],
)
def test_a_call_that_may_have_been_carried_out_is_unknown(
    call: Callable[[GrpcPeers], Awaitable[object]], reason: Reason
) -> None:
    """NO_MASTER says that nothing was done: clients repeat any such call."""
    channel = Cut()
    peers = GrpcPeers(cast(Any, SimpleNamespace(to=lambda address: channel)))

    async def main() -> None:
        assert await reason_of(call(peers)) is reason
        assert channel.calls == 1

    run(main())


def test_a_call_that_can_not_be_sent_was_not_carried_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        async def main() -> None:
            channels = PeerChannels(1024, ())
            work = GrpcPeers(channels).purge(address, "q", deadline_s=5.0)
            assert await reason_of(work) is Reason.NO_MASTER
            await channels.close()

        run(main())


def test_removed_messages_are_handed_out_though_the_master_moves(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Mastership.take

    async def then_moved(self: Mastership, messages_max: int, bytes_max: int) -> Any:
        runs = await taking(self, messages_max, bytes_max)
        self.end(Reason.NOT_MASTER)
        return runs

    async def work(node: Node, client: ringmq.Client) -> None:
        async with client.publisher("q") as publisher:
            await publisher.publish(b"only")
        monkeypatch.setattr(Mastership, "take", then_moved)
        got = await client.get_messages("q", 1, remove=True)
        assert got.bodies == [b"only"]
        monkeypatch.setattr(Mastership, "end", lambda self, reason: None)

    with_node(tmp_path, work)
