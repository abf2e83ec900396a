"""A comparison of whole replicas, whose answers are played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of
from node.tests.replica.test_comparing import ALL, answer

import ringmq
from ringmq_base.ranges import RangeSet
from ringmq_gm import Member, MemberId, View
from ringmq_node.broker.verifying import Verifying
from ringmq_node.doors.grpc.wire import digests_from_wire, digests_to_wire
from ringmq_node.model.info import DifferenceKind, VerifyInfo
from ringmq_node.node import Node
from ringmq_node.replica.comparing import Digests

VIEW = View(3, tuple(Member(MemberId(node, 1), synced=True) for node in "abc"), 2)


def test_a_replica_answers_with_the_digest_of_its_state_and_that_travels(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"one", b"two"])
        replica = replica_of(node)
        answered = await replica.digests(0, 1)
        state = replica.store.state
        assert (answered.number, answered.state_digest) == (state.last_number, state.digest())
        there = digests_from_wire("a", 0, digests_to_wire(answered))
        assert replace(there, _places={}) == replace(answered, _places={})

    with_node(tmp_path, work)


class Answers:
    """Of each node, whatever positions it is asked for."""

    def __init__(self, **answers: Digests) -> None:
        self._answers = answers
        # Told by b before anything else.
        self.firsts: list[Digests] = []

    async def digests(
        self, address: str, node: str, queue_id: str, first: int, last: int, *, number_min: int
    ) -> Digests:
        if node == "b" and self.firsts:
            return self.firsts.pop()
        return replace(self._answers[node], first=first, last=max(last, 0))


def verified(*firsts: Digests, **answers: Digests) -> VerifyInfo:
    cluster = SimpleNamespace(address_of=lambda member: member.node)
    locator = SimpleNamespace(master_of=lambda queue: VIEW.master, view_of=lambda queue: VIEW)
    sources = Answers(**answers)
    sources.firsts += firsts
    verifying = Verifying(cast(Any, cluster), cast(Any, locator), sources)

    async def work() -> VerifyInfo:
        return [info async for info in verifying.verify("q", "id")][-1]

    return run(work())


A, B, C = (answer(node, 5, ALL) for node in "abc")


def test_replicas_with_equal_messages_are_equal_if_their_states_are() -> None:
    assert verified(a=A, b=B, c=C).differences_total == 0
    found = verified(a=A, b=B, c=replace(C, state_digest="other"))
    assert (found.done, found.differences_total) == (True, 1)
    (difference,) = found.differences
    assert (difference.kind, difference.node, difference.other) == (DifferenceKind.REST, "a", "c")


def test_replicas_without_messages_are_compared_too() -> None:
    a, b, c = (replace(answer(node, 1, RangeSet()), next_position=0) for node in "abc")
    found = verified(a=a, b=b, c=c)
    assert (found.done, found.positions, found.differences_total) == (True, 0, 0)
    assert found.nodes == ("a", "b", "c")
    (difference,) = verified(a=a, b=b, c=replace(c, state_digest="other")).differences
    assert (difference.kind, difference.position) == (DifferenceKind.REST, 0)


@pytest.mark.parametrize("node", ["b", "c"])
def test_messages_that_differ_are_told_and_not_that_the_states_do(node: str) -> None:
    odd = replace(answer(node, 5, ALL, odd=4), state_digest="other")
    answers = {"a": A, "b": B, "c": C} | {node: odd}
    (difference,) = verified(**answers).differences
    assert (difference.kind, difference.position) == (DifferenceKind.BODY, 4)


def test_an_answer_of_another_view_is_asked_for_again() -> None:
    """It may have a tail of messages that the ring has given up."""
    earlier = replace(B, epoch=2, live=RangeSet([(0, 3)]), state_digest="other")
    found = verified(earlier, a=A, b=B, c=C)
    assert (found.done, found.differences_total) == (True, 0)
