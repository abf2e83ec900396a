"""The reconciler against a model cluster: where its steps lead, and which it never takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node.tests.broker.model_cluster import REPLACE_AFTER_S, RETRY_S, ModelCluster

from ringmq_gm import Member, MemberId, View, first_view
from ringmq_node.broker.placement import Fleet, FleetNode, NodeStanding
from ringmq_node.broker.reconciler import (
    Assign,
    DeadlineCame,
    Event,
    FleetSeen,
    HandOver,
    LookAtAll,
    QueueFacts,
    QueueGone,
    QueueSeen,
    Reconciler,
    RemoveMember,
    SetMinInsync,
    StepEnded,
)
from ringmq_node.model.policies import Mirrors, Policy, PolicyDefinition, wanted_of
from ringmq_node.model.records import QueueRecord

NODES = "abcde"
ORDERED = st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True).map(tuple)
MIRRORS = st.builds(Mirrors, st.none() | st.integers(1, 5), st.none() | ORDERED)


def policy(mirrors: Mirrors | None, min_insync: int | None = None) -> Policy:
    most = 7 if mirrors is None else min(mirrors.count or 7, len(mirrors.nodes or "1234567"))
    least = None if min_insync is None else min(min_insync, most)
    return Policy("p", ".*", 0, PolicyDefinition(mirrors or Mirrors(), least))


def settled(cluster: ModelCluster) -> str:
    """The nodes of the settled ring, the master first."""
    cluster.settle()
    assert {member.node for member in cluster.view.ids} == set(cluster.record.nodes)
    assert cluster.record.leaving == ()
    return "".join(member.node for member in cluster.view.ids)


# --- stories ---


def test_a_member_that_the_record_does_not_name_is_put_out() -> None:
    """It joined before it heard of the record. Its node keeps its replica until it is out."""
    cluster = ModelCluster("abc", "abc", min_insync=2)
    cluster.policy = policy(Mirrors(nodes=("a", "b")))
    cluster.record = cluster.record.with_replicas(("a", "b"), ())
    assert settled(cluster) == "ab"


def test_a_queue_that_was_declared_while_nodes_were_down_gets_its_replicas_there() -> None:
    cluster = ModelCluster("abc", "a", min_insync=2)
    cluster.kill("b")
    cluster.kill("c")
    assert settled(cluster) == "a"
    assert not cluster.view.has_quorum
    cluster.start("b")
    assert settled(cluster) == "ab"
    assert cluster.view.has_quorum
    cluster.start("c")
    assert settled(cluster) == "abc"
    assert cluster.view.min_insync == 2


def test_a_cluster_that_grows_gives_its_queues_more_replicas_then_a_higher_min_insync() -> None:
    cluster = ModelCluster("a", "a", min_insync=1)
    cluster.lives |= {"b": 1, "c": 1}
    cluster.standings |= {"b": NodeStanding(), "c": NodeStanding()}
    cluster.ring_acts()
    cluster.reconcile()
    assert isinstance(cluster.steps[0], Assign)
    assert cluster.view.min_insync == 1
    assert settled(cluster) == "abc"
    assert cluster.view.min_insync == 2


def test_a_replica_leaves_in_three_steps_and_after_its_substitute_has_come() -> None:
    cluster = ModelCluster("abcd", "abc", min_insync=2)
    cluster.standings["c"] = NodeStanding(drained=True, evacuated=True)
    cluster.settle()
    c = MemberId("c", 1)
    kinds = [
        (type(step).__name__, getattr(step, "nodes", ()), getattr(step, "leaving", ()))
        for step in cluster.steps
    ]
    assert kinds == [
        ("Assign", ("a", "b", "c", "d"), ()),
        ("Assign", ("a", "b", "c", "d"), ("c",)),
        ("RemoveMember", (), ()),
        ("Assign", ("a", "b", "d"), ()),
    ]
    removal = cluster.steps[2]
    assert isinstance(removal, RemoveMember)
    assert removal.member == c
    assert MemberId("d", 1) in removal.facts.view.synced


def test_an_evacuated_master_hands_over_first() -> None:
    cluster = ModelCluster("abcd", "abc", min_insync=2)
    cluster.standings["a"] = NodeStanding(drained=True, evacuated=True)
    assert settled(cluster) == "bcd"
    assert isinstance(cluster.steps[0], HandOver)


def test_a_node_that_is_missed_is_replaced_and_comes_back_to_nothing() -> None:
    cluster = ModelCluster("abcd", "abc", min_insync=2)
    cluster.kill("c")
    cluster.ring_acts()
    cluster.reconcile()
    assert cluster.steps == []
    cluster.now += REPLACE_AFTER_S
    assert settled(cluster) == "abd"
    cluster.start("c")
    assert settled(cluster) == "abd"


def test_a_replica_that_is_needed_again_does_not_leave() -> None:
    """b dies while c is to leave: c is the second copy, and joins again if it is restarted."""
    cluster = ModelCluster("abc", "abc", min_insync=2)
    cluster.policy = policy(Mirrors(2))
    cluster.reconcile()
    assert cluster.record.leaving == ("c",)
    cluster.kill("b")
    cluster.now += RETRY_S
    cluster.reconcile()
    assert "c" not in cluster.record.leaving
    cluster.kill("c")
    cluster.start("c")
    cluster.ring_acts()
    cluster.catches_up("c")
    assert cluster.view.has_quorum


def test_a_replica_that_may_begin_the_ring_again_is_kept() -> None:
    """b and c are down and not wanted any more. Without a quorum c is eligible: until d has
    everything, it may be the only other copy."""
    cluster = ModelCluster("abcd", "abc", min_insync=2)
    for node in "bc":
        cluster.kill(node)
        cluster.ring_acts()
    assert cluster.view.eligible == (MemberId("c", 1),)
    cluster.policy = policy(Mirrors(None, ("a", "d")))
    for _ in range(3):
        cluster.now += 2 * RETRY_S
        cluster.reconcile()
        cluster.ring_acts()
    assert cluster.record.nodes == ("a", "b", "c", "d")
    cluster.catches_up("d")
    assert settled(cluster) == "ad"


def test_forgetting_a_dead_node_gives_its_replicas_to_another_at_once() -> None:
    cluster = ModelCluster("abcd", "abc", min_insync=2)
    cluster.kill("c")
    del cluster.standings["c"]
    assert settled(cluster) == "abd"


def test_all_to_one_and_back() -> None:
    cluster = ModelCluster("abc", "abc", min_insync=2)
    cluster.policy = policy(Mirrors(1))
    assert settled(cluster) == "a"
    assert cluster.view.min_insync == 1
    cluster.policy = policy(Mirrors(), 3)
    assert settled(cluster) == "abc"
    assert cluster.view.min_insync == 3


def test_change_policy() -> None:
    """RabbitMQ's dynamic_ha_SUITE:change_policy: none, all, [a,b], [a,c], one, [b,c]."""
    cluster = ModelCluster("abc", "a", min_insync=1)
    for mirrors, expected in (
        (Mirrors(1), "a"),
        (Mirrors(), "abc"),
        (Mirrors(None, ("a", "b")), "ab"),
        (Mirrors(None, ("a", "c")), "ac"),
        (Mirrors(1), "a"),
        (Mirrors(None, ("b", "c")), "bc"),
    ):
        cluster.policy = policy(mirrors)
        assert settled(cluster) == expected


def test_change_cluster() -> None:
    """RabbitMQ's dynamic_ha_SUITE:change_cluster: exactly 4 on 3 nodes, on 5, one goes."""
    cluster = ModelCluster("abc", "a", min_insync=1)
    cluster.policy = policy(Mirrors(4))
    assert settled(cluster) == "abc"
    cluster.lives |= {"d": 1, "e": 1}
    cluster.standings |= {"d": NodeStanding(), "e": NodeStanding()}
    assert settled(cluster) == "abcd"
    cluster.kill("d")
    cluster.now += REPLACE_AFTER_S
    assert settled(cluster) == "abce"


# --- any story ---


class Story:
    """Draws what happens to a cluster, then lets it settle with all nodes up."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        placed = data.draw(ORDERED)
        quorum = data.draw(st.integers(1, len(placed)))
        self.cluster = ModelCluster(NODES, "".join(placed), min_insync=quorum)

    def happens(self) -> None:
        cluster, draw = self.cluster, self._data.draw
        node = draw(st.sampled_from(NODES))
        match draw(st.integers(0, 11)):
            case 0 | 1:
                cluster.kill(node)
            case 2 | 3:
                cluster.start(node)
            case 4:
                flags = draw(st.tuples(st.booleans(), st.booleans()))
                if node in cluster.standings:
                    cluster.standings[node] = NodeStanding(*flags)
            case 5:
                cluster.policy = policy(
                    draw(st.none() | MIRRORS), draw(st.none() | st.integers(1, 4))
                )
            case 6:
                cluster.now += draw(st.sampled_from([RETRY_S, REPLACE_AFTER_S]))
            case 7:
                cluster.catches_up(node)
            case 8:
                cluster.crash_reconciler()
            case 9:
                if node in cluster.down and len(cluster.standings) > 3:
                    cluster.standings.pop(node, None)
            case 10:
                cluster.ring_acts()
            case _:
                cluster.reconcile(carried_out=draw(st.booleans()))

    def ends(self) -> None:
        cluster = self.cluster
        for name in NODES:
            cluster.start(name)
            cluster.standings[name] = NodeStanding()
        if self._data.draw(st.booleans()):
            # One goes for good, so that the queue has to move.
            gone = self._data.draw(st.sampled_from(NODES))
            cluster.standings[gone] = NodeStanding(drained=True, evacuated=True)
        cluster.settle()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_from_any_state_the_wanted_one_is_reached_by_safe_steps(data: st.DataObject) -> None:
    """Each step is checked when it is proposed (`check_step`); the end is checked here."""
    story = Story(data)
    for _ in range(data.draw(st.integers(0, 25))):
        story.happens()
    story.ends()
    cluster, wanted = story.cluster, story.cluster.wanted()
    allowed = {name for name in wanted.mirrors.pool(NODES) if not cluster.standings[name].evacuated}
    if not allowed:
        return  # Nowhere to go: the queue stays where it is.
    assert len(cluster.record.nodes) == wanted.replicas
    assert set(cluster.record.nodes) <= allowed
    assert cluster.record.leaving == ()
    assert cluster.synced() == set(cluster.record.nodes)
    assert {member.node for member in cluster.view.ids} == set(cluster.record.nodes)
    assert cluster.view.min_insync == wanted.min_insync


# --- many queues ---


def facts_of(index: int, view: View, nodes: str, count: int = 3) -> QueueFacts:
    record = QueueRecord(f"q{index}", f"id{index}", tuple(nodes), 0)
    return QueueFacts(record, wanted_of(record, policy(Mirrors(count)), None, NODES), view)


def whole_fleet(*, drained: str = "", down: str = "") -> Fleet:
    return Fleet(
        {
            name: FleetNode(
                name,
                None if name in down else MemberId(name, 1),
                5.0 if name in down else None,
                drained=name in drained,
            )
            for name in NODES
        }
    )


def ring_of(nodes: str, *, joining: str = "") -> View:
    members = tuple(Member(MemberId(name, 1), synced=name not in joining) for name in nodes)
    return View(1, members, 1)


class Many:
    """A reconciler of many queues; collects its steps."""

    def __init__(self, *, moves_max: int = 2, handovers_max: int = 2) -> None:
        self.core = Reconciler(
            moves_max=moves_max,
            handovers_max=handovers_max,
            replace_after_s=REPLACE_AFTER_S,
            move_patience_s=50.0,
        )

    def take(self, event: Event, now: float = 0.0) -> list[str]:
        """The queues of the steps that it returns."""
        effects = self.core.step(event, now=now)
        return [e.facts.record.name for e in effects if not isinstance(e, LookAtAll)]


def test_only_some_queues_move_at_a_time_and_the_next_follow() -> None:
    many = Many()
    many.take(FleetSeen(whole_fleet()))
    began = [many.take(QueueSeen(facts_of(n, ring_of("a"), "a"))) for n in range(4)]
    assert began == [["q0"], ["q1"], [], []]
    many.take(StepEnded("id0"))
    # The replicas have joined and aren't synchronised: still on the move.
    assert many.take(QueueSeen(facts_of(0, ring_of("abc", joining="bc"), "abc"))) == []
    ended = many.take(QueueSeen(facts_of(0, ring_of("abc"), "abc")))
    assert "q2" in ended
    assert many.take(QueueGone("id1")) == ["q3"]


def test_a_replica_that_never_synchronises_does_not_stop_the_others_for_ever() -> None:
    many = Many(moves_max=1)
    many.take(FleetSeen(whole_fleet()))
    assert many.take(QueueSeen(facts_of(0, ring_of("a"), "a"))) == ["q0"]
    many.take(StepEnded("id0"))
    many.take(QueueSeen(facts_of(0, ring_of("abc", joining="bc"), "abc")))
    assert many.take(QueueSeen(facts_of(1, ring_of("a"), "a"))) == []
    assert many.take(DeadlineCame(), now=49.0) == []
    assert many.take(DeadlineCame(), now=51.0) == ["q1"]


def test_replicas_that_are_added_count_as_load_at_once() -> None:
    """Else all queues that lose a node would go to the same other one."""
    many = Many(moves_max=100)
    many.take(FleetSeen(whole_fleet()))
    chosen = set()
    for n in range(4):
        facts = facts_of(n, ring_of("a"), "a", 2)
        (step,) = many.core.step(QueueSeen(facts), now=0.0)
        assert isinstance(step, Assign)
        chosen.add(step.nodes[-1])
    assert chosen == set("bcde")


def test_only_some_masters_move_at_a_time() -> None:
    many = Many()
    many.take(FleetSeen(whole_fleet(drained="a")))
    began = [many.take(QueueSeen(facts_of(n, ring_of("abc"), "abc"))) for n in range(3)]
    assert began == [["q0"], ["q1"], []]
    assert many.take(QueueGone("id0")) == ["q2"]


def test_a_step_that_came_to_nothing_is_proposed_again_after_a_while() -> None:
    many = Many()
    many.take(FleetSeen(whole_fleet()))
    facts = facts_of(0, first_view([MemberId("a", 1)], 1), "a", 1)
    raised = replace(facts, view=ring_of("abc"), wanted=replace(facts.wanted, min_insync=2))
    (step,) = many.core.step(QueueSeen(raised), now=0.0)
    assert isinstance(step, SetMinInsync)
    assert many.take(StepEnded("id0")) == []
    assert many.take(QueueSeen(raised)) == []
    assert many.take(DeadlineCame(), now=0.5) == []
    assert many.take(DeadlineCame(), now=1.1) == ["q0"]


def test_all_queues_are_asked_for_when_a_node_begins_to_be_missed() -> None:
    core = Reconciler(replace_after_s=REPLACE_AFTER_S)
    core.step(FleetSeen(whole_fleet(down="c")), now=10.0)
    assert core.next_deadline() == 5.0 + REPLACE_AFTER_S
    assert core.step(DeadlineCame(), now=5.0 + REPLACE_AFTER_S) == [LookAtAll()]
    assert core.next_deadline() is None


@pytest.mark.parametrize("event", [StepEnded("unknown"), QueueGone("unknown"), DeadlineCame()])
def test_events_of_queues_that_have_gone_are_nothing(event: Event) -> None:
    assert Reconciler().step(event, now=0.0) == []
