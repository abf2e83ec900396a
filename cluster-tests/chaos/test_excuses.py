"""Which times without service a run is judged by, in histories written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.excuses import WITHOUT_SERVICE_S_MAX
from chaos.figures import by_kind, judged_s, look_at, too_long
from chaos.report import Outcome
from chaos.run import Options, judge
from faults.rounds import TWO_DISKS
from faults.vocabulary import Block
from history.records import Confirm, Deliver, Drained, History, Nemesis, Publish, Record, Run, Whole


def suffered(at: float, until: float, kind: str, fault: str, *nodes: str) -> list[Record]:
    """A fault of round 1, from `at` to `until`."""
    return [Nemesis(each, each == at, 1, kind, nodes, fault) for each in (at, until)]


def history(faults: list[Record], back_at: float) -> list[Record]:
    """A queue with a confirm each 0.1 s, but none from 10 s to `back_at`. The faults begin at 10 s,
    and a second after `back_at` all is whole."""
    moments = [tick / 10 for tick in range(101)]
    moments += [back_at + tick / 10 for tick in range(20)]
    records: list[Record] = [*faults, Whole(back_at + 1.0, 1), Drained(back_at + 2.5, "q")]
    for number, at in enumerate(moments):
        records.append(Publish(at, "q", "lib-q", number, number))
        records.append(Confirm(at + 0.001, "q", "lib-q", number, number))
    run = Run(0, "lib-q", 0, len(moments), redelivered=False)
    records.append(Deliver(back_at + 2.2, "q", "c", 1, (run,)))
    return sorted(records, key=lambda record: record.at)


def judged(faults: list[Record], back_at: float) -> float:
    seen = look_at(history(faults, back_at))
    (only,) = seen.rounds
    return round(judged_s(seen.confirmed_at, only), 1)


def test_of_most_kinds_all_of_it_counts() -> None:
    kill = suffered(10.0, 11.0, "kill", "Crash(b)", "b")
    assert judged(kill, 12.0) == 2.0
    assert judged(kill, 18.0) == 8.0


def test_all_killed_counts_from_the_last_start() -> None:
    kind = "all killed"
    assert judged(suffered(10.0, 14.0, kind, "PowerCut(4.0)"), 16.0) == 2.0
    assert judged(suffered(10.0, 14.0, kind, "PowerCut(4.0)"), 19.0) == 5.0


def test_a_node_with_a_lost_disk_waits_for_its_lease() -> None:
    faults = suffered(10.0, 10.5, TWO_DISKS, "Crash(a)", "a")
    faults += suffered(10.05, 11.0, TWO_DISKS, "DiskLost(b)", "b")
    assert judged(faults, 19.05) == 2.0


def test_one_by_one_counts_until_the_second_is_killed() -> None:
    kind = "one by one, the last disk lost"
    faults = suffered(10.0, 20.0, kind, "Crash(a)", "a")
    faults += suffered(13.0, 20.0, kind, "Crash(b)", "b")
    faults += suffered(16.0, 20.0, kind, "DiskLost(c)", "c")
    assert judged(faults, 24.0) == 3.0
    # What was cut off by the second kill had lasted since the first one.
    faults[2:4] = suffered(14.5, 20.0, kind, "Crash(b)", "b")
    assert judged(faults, 24.0) == 4.5


@pytest.mark.parametrize(
    ("kind", "away"),
    [
        ("registry away and a kill", "RegistryOutage(4.0)"),
        ("the last one cut off", "RegistryCut(a)"),
    ],
)
def test_without_a_registry_it_counts_from_its_return(kind: str, away: str) -> None:
    faults = suffered(10.0, 14.0, kind, away)
    faults += suffered(10.5, 18.0, kind, "Crash(b)", "b")
    assert judged(faults, 16.5) == 2.5


def test_of_a_storm_the_time_counts_in_which_one_node_is_harmed() -> None:
    faults = suffered(10.0, 20.0, "storm", "Block(a)", "a")
    assert judged(faults, 15.0) == 5.0
    # b is back 2 s after its fault.
    faults += suffered(12.0, 13.0, "storm", "Pause(b)", "b")
    assert judged(faults, 18.0) == 3.0
    # The same node twice and promotions are no second harm.
    faults[2:] = suffered(12.0, 13.0, "storm", "Pause(a)", "a")
    faults += suffered(12.0, 16.0, "storm", "Promote(b)", "b")
    assert judged(faults, 18.0) == 8.0
    # A node that no client reaches is one: it may be the master.
    cuts = (Block(0, ("clients",), ("b",), True, 1.0), Block(0, ("b",), ("clients",), False, 1.0))
    for cut in cuts:
        faults[6:] = suffered(10.0, 15.0, "storm", str(cut), cut.sources[0])
        assert judged(faults, 18.0) == 1.0
    # The registry is one.
    faults[6:] = []
    faults += suffered(10.0, 15.0, "storm", "RegistryOutage(5.0)")
    assert judged(faults, 18.0) == 1.0


def test_of_a_storm_that_killed_all_a_restored_disk_is_harmed_until_the_ring_begins() -> None:
    """Seed 1126, round 94: of two that were up, one could begin no ring."""
    faults = suffered(10.0, 12.4, "storm", "DiskRestored(b)", "b")
    faults += suffered(10.3, 17.8, "storm", "Crash(a)", "a")
    # The third one has never been down: with it the node with the restored disk could go on.
    assert judged(faults, 19.9) == 5.5
    faults += suffered(10.0, 10.2, "storm", "Crash(c)", "c")
    assert judged(faults, 19.9) == 0.1
    assert judged(faults, 24.0) == 4.2


def test_of_a_storm_a_lost_disk_is_harmed_until_its_lease_is_over() -> None:
    faults = suffered(10.0, 10.5, "storm", "DiskLost(b)", "b")
    faults += suffered(11.0, 20.0, "storm", "Pause(c)", "c")
    assert judged(faults, 19.1) == 1.0
    assert judged(faults, 21.0) == 2.0


def test_two_faults_of_one_node_may_be_found_out_one_behind_the_other() -> None:
    """As in seed 2729, round 39: a master's links flap, and it is cut from its clients."""
    flap = suffered(10.0, 18.0, "two at once", "Flap(c)", "c")
    cut = str(Block(0.8, ("c",), ("clients",), both_ways=False, for_s=9.4))

    def late(faults: list[Record], back_at: float) -> bool:
        return bool(too_long(look_at(history(faults, back_at))))

    together = flap + suffered(10.8, 20.2, "two at once", cut, "c")
    assert judged(together, 16.9) == 6.9
    assert not late(together, 16.9)
    assert late(together, 17.1)
    # One after the other, of another node, or alone.
    assert late(flap + suffered(18.1, 20.2, "two at once", cut, "c"), 16.9)
    assert late(suffered(10.0, 18.0, "flapping cut", "Flap(c)", "c"), 16.9)
    # Before or behind both, or of the registry.
    short = flap + suffered(10.8, 12.0, "two at once", cut, "c")
    assert not late(short, 16.9)
    assert not late([*suffered(5.0, 10.5, "two at once", "Flap(c)", "c"), *short], 16.9)
    over = suffered(5.0, 9.0, "two at once", "Flap(c)", "c")
    assert late([*over, *suffered(6.0, 9.9, "two at once", cut, "c")], 16.9)
    outages = suffered(10.0, 18.0, "two at once", "RegistryOutage(at=0.0)")
    assert late([*outages, *suffered(10.5, 19.0, "two at once", "RegistryOutage(at=0.5)")], 16.9)
    promote = "Promote(at=1.0, target='c')"
    assert late(flap + suffered(10.8, 10.9, "two at once", promote, "c"), 16.9)


def outcome_of(folder: Path, back_at: float, *, untimed: bool = False) -> Outcome:
    with History(folder / "history.jsonl") as written:
        for record in history(suffered(10.0, 11.0, "kill", "Crash(b)", "b"), back_at):
            written.note(record)
    outcome = Outcome(7, 1.0)
    judge(outcome, Options(7, 1.0, folder, queues=("q",), untimed=untimed))
    return outcome


def test_a_time_that_is_too_long_fails_the_run(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, 10.0 + WITHOUT_SERVICE_S_MAX + 0.5)
    assert not outcome.is_well
    (failure,) = outcome.failures
    assert failure == ("round 1, kill: without service for 4.0 s, 3.5 s are allowed: Crash(b)")
    assert "too long" in outcome.text("")


def test_a_time_that_is_short_enough_does_not(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, 10.0 + WITHOUT_SERVICE_S_MAX - 0.2).is_well


def test_a_busy_machine_may_be_slow(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, 30.0, untimed=True)
    assert outcome.is_well
    assert "too long" in outcome.text("")


def test_the_reasons_of_the_kinds_that_were_played_are_told() -> None:
    seen = look_at(history(suffered(10.0, 14.0, "all killed", "PowerCut(4.0)"), 16.0))
    assert too_long(seen) == []
    text = Outcome(1, 1.0, kinds=by_kind(seen)).text("")
    assert "too few whole logs" in text
    assert "registry" not in text
