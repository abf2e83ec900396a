"""Which nodes a queue's replicas go to: RabbitMQ's table of node choice, and what we add."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ringmq_gm import Member, MemberId, View
from ringmq_node.broker.placement import Fleet, FleetNode, choose, place
from ringmq_node.model.policies import Mirrors, Wanted, wanted_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import MasterLocator, QueueRecord
from ringmq_node.model.settings import SyncSettings

ALL = Mirrors()


def life(node: str) -> MemberId:
    return MemberId(node, 1)


def fleet_of(up: str, *, down: str = "", drained: str = "", evacuated: str = "") -> Fleet:
    names = [*up, *down]
    return Fleet(
        {
            name: FleetNode(
                name,
                None if name in down else life(name),
                0.0 if name in down else None,
                drained=name in drained or name in evacuated,
                evacuated=name in evacuated,
            )
            for name in names
        }
    )


def view_of(master: str, mirrors: str, synced: str, *, min_insync: int = 1) -> View:
    members = [Member(life(master), synced=True)]
    members += [Member(life(name), synced=name in synced) for name in mirrors]
    return View(1, tuple(members), min_insync)


def wanted(mirrors: Mirrors, fleet: Fleet, locator: MasterLocator | None = None) -> Wanted:
    record = QueueRecord("q", "id", (), 0)
    found = wanted_of(record, None, None, [*fleet.nodes])
    count = len(mirrors.pool(fleet.nodes))
    replicas = max(1, count if mirrors.count is None else min(count, mirrors.count))
    return Wanted(
        mirrors, replicas, replicas // 2 + 1, SyncSettings(), locator or found.master_locator
    )


def exactly(count: int) -> Mirrors:
    return Mirrors(count)


def nodes(names: str) -> Mirrors:
    return Mirrors(None, tuple(names))


# As in RabbitMQ's dynamic_ha_SUITE:dynamic_mirroring: what is wanted; master, mirrors and which of
# these are synchronised; the nodes that run; the master to be, the mirrors that must be there, and
# how many more. Nodes that are named but don't run belong to the cluster, and are down.
TABLE = [
    (ALL, ("a", "", ""), "abc", "", ("a", "bc", 0)),
    (ALL, ("a", "bc", "bc"), "abc", "", ("a", "bc", 0)),
    # d was forgotten: it doesn't belong to the cluster any more.
    (ALL, ("a", "d", "d"), "abc", "", ("a", "bc", 0)),
    # Add a node.
    (nodes("abc"), ("a", "b", "b"), "abcd", "", ("a", "bc", 0)),
    (nodes("abc"), ("b", "a", "a"), "abcd", "", ("b", "ac", 0)),
    # Add two nodes and drop one.
    (nodes("abc"), ("a", "d", "d"), "abcd", "", ("a", "bc", 0)),
    # Don't try to include nodes that are not running.
    (nodes("abf"), ("a", "b", "b"), "abcd", "f", ("a", "b", 0)),
    # If none of the nodes can be had, only the master is kept.
    (nodes("fgh"), ("a", "b", "b"), "abcd", "fgh", ("a", "", 0)),
    # The master stays although it isn't named, if nothing is synchronised.
    (nodes("bc"), ("a", "", ""), "abcd", "", ("a", "bc", 0)),
    (nodes("bc"), ("a", "b", ""), "abcd", "", ("a", "bc", 0)),
    # With a synchronised mirror the master moves there, and not to another.
    (nodes("bc"), ("a", "b", "b"), "abcd", "", ("b", "c", 0)),
    (nodes("cb"), ("a", "b", "b"), "abcd", "", ("b", "c", 0)),
    (exactly(2), ("a", "", ""), "abcd", "", ("a", "", 1)),
    (exactly(3), ("a", "", ""), "abcd", "", ("a", "", 2)),
    (exactly(2), ("a", "c", "c"), "abcd", "", ("a", "c", 0)),
    (exactly(3), ("a", "c", "c"), "abcd", "", ("a", "c", 1)),
    (exactly(2), ("a", "cd", "cd"), "abcd", "", ("a", "c", 0)),
    (exactly(3), ("a", "cd", "cd"), "abcd", "", ("a", "cd", 0)),
]


@pytest.mark.parametrize(("mirrors", "present", "up", "down", "expected"), TABLE)
def test_rabbitmqs_table_of_node_choice(
    mirrors: Mirrors,
    present: tuple[str, str, str],
    up: str,
    down: str,
    expected: tuple[str, str, int],
) -> None:
    master, others, synced = present
    fleet = fleet_of(up, down=down)
    placement = choose(
        [master, *others],
        view_of(master, others, synced),
        wanted(mirrors, fleet),
        fleet,
        is_missed=lambda node: False,
    )
    new_master, named, more = expected
    assert placement.master == new_master
    chosen = set(placement.nodes) - {new_master}
    assert set(named) <= chosen
    assert len(chosen) == len(named) + more


def chosen_of(
    current: str, synced: str, fleet: Fleet, mirrors: Mirrors, *, missed: str = ""
) -> tuple[str, str]:
    """The nodes and the master."""
    placement = choose(
        [*current],
        view_of(current[0], current[1:], synced),
        wanted(mirrors, fleet),
        fleet,
        is_missed=lambda node: node.node in missed,
    )
    return "".join(placement.nodes), placement.master


def test_of_too_many_the_synchronised_stay_then_those_that_are_up() -> None:
    assert chosen_of("abcd", "bd", fleet_of("abcd"), exactly(3)) == ("abd", "a")
    assert chosen_of("abcd", "d", fleet_of("acd", down="b"), exactly(3)) == ("acd", "a")


def test_a_node_that_is_down_is_replaced_once_it_is_missed() -> None:
    fleet = fleet_of("abd", down="c")
    assert chosen_of("abc", "b", fleet, exactly(3)) == ("abc", "a")
    assert chosen_of("abc", "b", fleet, exactly(3), missed="c") == ("abd", "a")
    alone = fleet_of("ab", down="c")
    assert chosen_of("abc", "b", alone, exactly(3), missed="c") == ("abc", "a")


def test_a_drained_node_gets_no_master_and_no_replica_and_an_evacuated_one_loses_its_own() -> None:
    assert chosen_of("abc", "bc", fleet_of("abcd", drained="a"), exactly(3)) == ("abc", "b")
    assert chosen_of("ab", "b", fleet_of("abcd", drained="c"), exactly(3)) == ("abd", "a")
    assert chosen_of("abc", "bc", fleet_of("abcd", evacuated="c"), exactly(3)) == ("abd", "a")


def test_the_least_busy_of_the_synchronised_becomes_master() -> None:
    """Not the next one in the ring: a node that is drained would give all of its masters to one."""
    fleet = Fleet(fleet_of("abc", drained="a").nodes, masters={"a": 1, "b": 2, "c": 1})
    assert chosen_of("abc", "bc", fleet, exactly(3)) == ("abc", "c")


def placed(fleet: Fleet, mirrors: Mirrors, locator: MasterLocator, local: str = "b") -> str:
    def last(names: Sequence[str]) -> str:
        return names[-1]

    members = place(wanted(mirrors, fleet, locator), fleet, local=local, choice=last)
    return "".join(member.node for member in members)


def test_locators_of_a_new_queues_master() -> None:
    fleet = Fleet(fleet_of("abc").nodes, masters={"a": 2, "b": 1, "c": 1}, mirrors={"b": 1})
    assert placed(fleet, exactly(2), MasterLocator.MIN_MASTERS) == "cb"
    assert placed(fleet, exactly(2), MasterLocator.CLIENT_LOCAL) == "bc"
    assert placed(fleet, exactly(2), MasterLocator.RANDOM) == "ac"
    # A node that may have no replica can't have the master.
    assert placed(fleet, nodes("ac"), MasterLocator.CLIENT_LOCAL) == "ca"


def test_a_new_queue_is_placed_on_the_nodes_that_are_up() -> None:
    assert placed(fleet_of("a", down="bc"), exactly(3), MasterLocator.MIN_MASTERS) == "a"
    with pytest.raises(BrokerError, match=r"a \(drained\), b \(down\)") as caught:
        placed(fleet_of("a", down="b", drained="a"), exactly(3), MasterLocator.MIN_MASTERS)
    assert caught.value.reason is Reason.LIMIT_EXCEEDED
