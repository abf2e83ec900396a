"""Which masters are moved: as few as make the nodes even, and never those with most messages."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from node.tests.broker.test_placement import fleet_of

from ringmq_node.broker.rebalancing import Mastered, MasterMove, mastered, plan
from ringmq_node.model.info import MemberInfo, QueueCondition, QueueInfo
from ringmq_node.model.policies import Mirrors, Wanted
from ringmq_node.model.records import QueueMode


def queue(name: str, master: str, targets: str, messages: int = 0) -> Mastered:
    return Mastered(name, master, tuple(targets), messages)


def counts_after(queues: list[Mastered], moves: list[MasterMove], nodes: str) -> Counter[str]:
    masters = {each.queue: each.master for each in queues}
    masters |= {move.queue: move.new_master for move in moves}
    return Counter(dict.fromkeys(nodes, 0)) + Counter(masters.values())


def test_rebalance_all() -> None:
    """RabbitMQ's dynamic_ha_SUITE:rebalance_all: 5 queues on a, at most 2 on each node; the two
    with most messages don't move."""
    # The fewer messages, the later its name.
    queues = [queue(f"q{n}", "a", "bc", messages=6 - n) for n in range(1, 6)]
    moves = plan(queues, "abc")
    assert counts_after(queues, moves, "abc") == {"a": 2, "b": 2, "c": 1}
    assert {move.queue for move in moves} == {"q3", "q4", "q5"}


def test_rebalance_nodes() -> None:
    """RabbitMQ's rebalance_nodes: mirrors on a and b only, so at most 3 on each."""
    queues = [queue(f"q{n}", "a", "b") for n in range(5)]
    assert counts_after(queues, plan(queues, "abc"), "abc") == {"a": 3, "b": 2}


def test_what_is_even_stays() -> None:
    assert plan([queue("p", "a", "b"), queue("q", "b", "a")], "ab") == []
    assert plan([queue("p", "a", "b")], "ab") == []
    assert plan([], "ab") == []


def test_masters_leave_a_node_that_may_have_none_as_far_as_that_evens_out() -> None:
    queues = [queue(f"q{n}", "a", "bc") for n in range(6)]
    moves = plan(queues, "bc")
    assert all(move.old_master == "a" for move in moves)


@given(st.data())
def test_any_plan_evens_out_and_moves_no_queue_twice(data: st.DataObject) -> None:
    nodes = "abcd"
    queues = []
    for index in range(data.draw(st.integers(0, 12))):
        order = data.draw(st.permutations(nodes))
        mirrors = data.draw(st.integers(0, 3))
        queues.append(queue(f"q{index}", order[0], "".join(order[1 : mirrors + 1]), index))
    moves = plan(queues, nodes)
    assert len({move.queue for move in moves}) == len(moves)
    after = counts_after(queues, moves, nodes)
    moved = {move.queue for move in moves}
    for each in queues:
        target = {move.queue: move.new_master for move in moves}.get(each.queue, each.master)
        assert target == each.master or target in each.targets
        # No queue that stayed could still make two nodes more even.
        if each.queue not in moved:
            assert all(after[node] > after[each.master] - 2 for node in each.targets)


def test_only_synchronised_mirrors_on_nodes_that_take_masters_are_targets() -> None:
    info = QueueInfo(
        queue="q",
        id="id",
        replicas_wanted=3,
        min_insync=1,
        mode=QueueMode.DEFAULT,
        durable=True,
        condition=QueueCondition.RUNNING,
        ring=tuple(MemberInfo(node, 1, node != "c") for node in "abcde"),
        messages_ready=3,
        messages_unacknowledged=4,
    )
    fleet = fleet_of("abcde", drained="d")
    found = mastered(info, Wanted(Mirrors(), 5, 3), fleet)
    assert found == Mastered("q", "a", ("b", "e"), 7)
    named = mastered(info, Wanted(Mirrors(None, ("a", "b")), 2, 2), fleet)
    assert named is not None
    assert named.targets == ("b",)
