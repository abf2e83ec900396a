"""How a route finds a queue's master while one of the nodes is stopped: that one takes in what it
is asked, and answers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import loops
from loops import run
from on_loops import seconds

from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.route import ATTEMPT_S, Route
from ringmq.v1 import broker_pb2 as broker
from ringmq_wire import Code, RpcError, RpcStatus

# The master that a node names, and the epoch.
Answer = tuple[str, int]


class Played(KnownNodes):
    """Nodes by name, asked in this order; each names a master, or is stopped (None)."""

    def __init__(self, **answers: Answer | None) -> None:
        self.answers = {f"{name}:1": answer for name, answer in answers.items()}
        super().__init__(list(self.answers), deadline_s=5.0, receive_bytes_max=1 << 20)
        self._order = list(self.answers)
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def channel(self, address: str) -> Any:
        async def locate(request: Any, *, timeout: float) -> Any:
            self.asked.append(address)
            answer = self.answers[address]
            if answer is None:
                try:
                    await asyncio.sleep(timeout)
                except asyncio.CancelledError:
                    self.cancelled.append(address)
                    raise
                raise RpcError(RpcStatus(Code.DEADLINE_EXCEEDED, "stopped"))
            node, epoch = answer
            return broker.LocateQueueResponse(node=node, address=f"{node}:1", epoch=epoch)

        return SimpleNamespace(address=address, broker=SimpleNamespace(LocateQueue=locate))


def played(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `test`, after which no node may still be asked."""
    run(test())
    assert not [name for name in loops.left_tasks if name.startswith("ringmq-")]


def test_the_first_answer_that_names_a_newer_master_is_taken() -> None:
    nodes = Played(a=None, b=("a", 7), c=("b", 8))
    found: list[str] = []

    async def test() -> None:
        async def ask() -> None:
            found.append(await Route(nodes, "q").newer_master("a", 7))

        assert await seconds(ask()) < ATTEMPT_S / 2

    played(test)
    assert found == ["b:1"]
    assert nodes.cancelled == ["a:1"]


def test_of_the_answers_that_are_there_the_newest_counts() -> None:
    async def test() -> None:
        nodes = Played(a=("c", 8), b=("d", 9), c=None)
        assert await Route(nodes, "q").newer_master("a", 7) == "d:1"
        # It has become master once more since.
        nodes = Played(a=("a", 9), b=("c", 8), c=None)
        assert await Route(nodes, "q").newer_master("a", 7) == ""

    played(test)


def test_a_stopped_node_may_yet_be_the_one_that_knows() -> None:
    """Nobody else names a newer master: the whole time is waited for its answer."""
    nodes = Played(a=None, b=("a", 7))

    async def test() -> None:
        async def ask() -> None:
            assert await Route(nodes, "q").newer_master("a", 7) == ""

        assert await seconds(ask()) > 0.9 * ATTEMPT_S

    played(test)
    assert nodes.cancelled == []
