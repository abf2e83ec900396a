"""Alarms of other nodes, as links and records bring them: which hold publishers here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ringmq_gm import NodeRecord
from ringmq_node.broker.alarms import ClusterAlarms
from ringmq_node.model.flow import BlockReason
from ringmq_node.resources import Alarm

MEMORY, DISK = BlockReason.MEMORY, BlockReason.DISK


class PlayedGroup:
    """What the other nodes tell node a, and what it tells them."""

    def __init__(self) -> None:
        self.registry_available = True
        self.records: dict[str, NodeRecord] = {}
        self.bits: dict[str, int] = {}
        self.notice = 0
        self.facts: dict[str, Any] = {}
        self.changes: list[frozenset[BlockReason]] = []
        self.alarms = ClusterAlarms("a", self, changed=self.changes.append)

    def nodes(self) -> Mapping[str, NodeRecord]:
        return self.records

    def notices(self) -> Mapping[str, int]:
        return self.bits

    def set_notice(self, notice: int) -> None:
        self.notice = notice

    def describe(self, **facts: Any) -> None:
        self.facts.update(facts)

    def record(self, node: str, alarms: object) -> None:
        self.records[node] = NodeRecord(node, 1, "x:1", {"alarms": alarms})


def test_own_alarms_hold_and_are_told_by_both_ways() -> None:
    group = PlayedGroup()
    group.alarms.set_own(Alarm.DISK, True)
    group.alarms.set_own(Alarm.MEMORY, True)
    # It has left its rings: publishes don't reach it.
    group.alarms.set_own(Alarm.STORE, True)
    assert (group.notice, group.facts) == (3, {"alarms": ["disk", "memory"]})
    group.alarms.set_own(Alarm.DISK, False)
    group.alarms.set_own(Alarm.MEMORY, False)
    assert (group.notice, group.facts) == (0, {"alarms": []})
    assert group.changes == [{DISK}, {DISK, MEMORY}, {MEMORY}, set()]


def test_an_alarm_counts_while_either_way_says_so() -> None:
    group = PlayedGroup()
    group.bits["b"] = 2
    group.record("b", [])
    group.record("c", ["memory"])
    group.alarms.learn()
    assert group.alarms.raised == {"b": {DISK}, "c": {MEMORY}}
    group.bits.clear()
    group.alarms.learn()
    assert group.alarms.reasons == {MEMORY}
    # Its lease has run out.
    del group.records["c"]
    group.alarms.learn()
    assert group.alarms.raised == {}
    assert group.changes == [{DISK, MEMORY}, {MEMORY}, set()]


def test_a_registry_that_is_away_holds_nobody_but_links_do() -> None:
    group = PlayedGroup()
    group.record("b", ["disk"])
    group.record("c", ["disk"])
    group.bits["c"] = 1
    group.alarms.learn()
    group.registry_available = False
    group.alarms.learn()
    assert group.alarms.raised == {"c": {MEMORY}}


@pytest.mark.parametrize("alarms", [None, "disk", 7, ["fire", 3, None], {"disk": True}])
def test_words_that_this_version_does_not_know_are_no_alarms(alarms: object) -> None:
    group = PlayedGroup()
    group.record("b", alarms)
    group.bits["b"] = 0xFC
    group.alarms.learn()
    assert group.alarms.raised == {}
