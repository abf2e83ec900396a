"""The cluster's life goes on while any member of it is up, and ends with the last one: a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ringmq_gm import MemberId
from ringmq_node.broker.topology.life import ClusterLife, next_life
from ringmq_node.model.topology import TopologyRecordError

NODES = st.sampled_from("abc")


class LifeMachine(RuleBasedStateMachine):
    """Nodes start, die and look, in any order. A lease outlives its node until it is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[str, int] = {}
        self.up: set[str] = set()
        self.leases: dict[str, int] = {}
        self.record: ClusterLife | None = None
        self.made = 0

    @rule(node=NODES)
    def start(self, node: str) -> None:
        if node not in self.up:
            self.lives[node] = self.lives.get(node, 0) + 1
            self.leases[node] = self.lives[node]
            self.up.add(node)

    @rule(node=NODES)
    def die(self, node: str) -> None:
        if node in self.up:
            self.up.remove(node)

    @rule(node=NODES)
    def lease_runs_out(self, node: str) -> None:
        if node not in self.up:
            self.leases.pop(node, None)

    @rule(node=NODES)
    def look(self, node: str) -> None:
        if node not in self.up:
            return
        self.made += 1
        life = next_life(
            self.record,
            MemberId(node, self.lives[node]),
            alive=self.leases,
            latest=lambda each: self.lives.get(each, 0),
            belongs="abc",
            new_id=str(self.made),
        )
        if life is not None:
            if self.record is not None and life.id != self.record.id:
                for member, incarnation in self.record.members.items():
                    is_up = member in self.up and self.lives[member] == incarnation
                    assert not is_up, "a life ended with a member up"
            self.record = life

    @rule()
    def all_come_back_and_look(self) -> None:
        before = self.record
        for node in "abc":
            self.start(node)
        for _ in range(2):
            for node in "abc":
                self.look(node)
        assert self.record is not None
        members = {} if before is None else before.members
        if before is not None and all(self.lives[node] > members[node] for node in members):
            assert self.record.id != before.id, "a life that is over goes on"

    @invariant()
    def record_can_be_read(self) -> None:
        if self.record is not None:
            assert ClusterLife.decode(self.record.encode()) == self.record


TestLife = LifeMachine.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def play(*turns: Callable[[ClusterLife | None], ClusterLife | None]) -> ClusterLife:
    life: ClusterLife | None = None
    for turn in turns:
        life = turn(life) or life
    assert life is not None
    return life


def looks(node: str, incarnation: int, **alive: int) -> Callable[..., ClusterLife | None]:
    def turn(life: ClusterLife | None) -> ClusterLife | None:
        return next_life(
            life,
            MemberId(node, incarnation),
            alive=alive,
            latest=lambda each: alive.get(each, 0),
            belongs="abc",
            new_id=f"of {node}{incarnation}",
        )

    return turn


def test_a_rolling_restart_is_one_life() -> None:
    life = play(
        looks("a", 1, a=1),
        looks("a", 1, a=1, b=1),
        looks("b", 1, a=2, b=1),
        looks("a", 2, a=2, b=2),
    )
    assert life == ClusterLife("of a1", {"a": 2, "b": 2})


def test_a_restart_of_all_is_another_life() -> None:
    life = play(
        looks("a", 1, a=1),
        looks("a", 1, a=1, b=1),
        # b's lease has not run out yet: it may be up.
        looks("a", 2, a=2, b=1),
        looks("b", 2, a=2, b=2),
    )
    assert life == ClusterLife("of b2", {"b": 2})
    assert looks("a", 2, a=2, b=2)(life) is None
    assert looks("b", 2, a=2, b=2)(life) == ClusterLife("of b2", {"a": 2, "b": 2})


def test_a_member_that_is_forgotten_keeps_no_life_going() -> None:
    life = ClusterLife("old", {"z": 1})
    assert looks("a", 2, a=2)(life) == ClusterLife("of a2", {"a": 2})


@pytest.mark.parametrize("data", [b"", b"[]", b'{"id":1,"members":{}}', b'{"id":"x"}', b"\xff"])
def test_a_bad_record_is_refused(data: bytes) -> None:
    with pytest.raises(TopologyRecordError):
        ClusterLife.decode(data)
