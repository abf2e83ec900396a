"""The failure detector: when a node is down, and when that is not said."""

from __future__ import annotations

import pytest

from ringmq_gm.links.detector import Contact, Detector, Down, Finding, Silent, Up

TIMEOUT_S = 2.0
REDIAL_S = 0.2


class Middle:
    """Chance without chance: half of the jitter."""

    def random(self) -> float:
        return 0.5


def detector() -> Detector:
    made = Detector(ring_timeout_s=TIMEOUT_S, redial_s=REDIAL_S, chance=Middle())
    made.wanted("b", 0.0)
    return made


def up() -> Detector:
    made = detector()
    assert made.opened("b", 0.0) == [Up("b")]
    return made


def tick_when_due(watch: Detector, *, late_s: float = 0.0) -> tuple[float, list[Finding]]:
    """Ticks whenever it is due, always so late, until something is found: when, and what."""
    for _ in range(1000):
        due = watch.next_deadline()
        assert due is not None
        found = list(watch.tick(due + late_s))
        if found:
            return due + late_s, found
    raise AssertionError("nothing was found")


def tick_until(watch: Detector, end: float) -> list[Finding]:
    found: list[Finding] = []
    while (due := watch.next_deadline()) is not None and due < end:
        found += watch.tick(due)
    return found


def test_silence_for_the_time_out_and_its_jitter_is_down() -> None:
    assert tick_when_due(up()) == (TIMEOUT_S * 1.125, [Silent("b"), Down("b")])


def test_any_sign_of_life_begins_the_silence_anew() -> None:
    watch = up()
    tick_until(watch, 1.9)
    watch.heard("b", 1.9)
    assert tick_until(watch, 2.3) == []
    assert tick_when_due(watch) == (1.9 + TIMEOUT_S * 1.125, [Silent("b"), Down("b")])


def test_a_broken_link_that_is_mended_in_time_is_not_down() -> None:
    watch = up()
    watch.broke("b", 1.0)
    assert watch.opened("b", 1.1) == [Up("b")]
    assert tick_until(watch, 1.3) == []
    assert watch.contact("b") is Contact.UP


def test_a_broken_link_whose_redial_fails_is_down_at_once() -> None:
    watch = up()
    watch.broke("b", 5.0)
    assert watch.dial_failed("b") == [Down("b")]
    assert watch.dial_failed("b") == []
    assert watch.down() == ["b"]


def test_a_broken_link_whose_redial_hangs_is_down_soon() -> None:
    watch = up()
    tick_until(watch, 1.0)
    watch.broke("b", 1.0)
    assert tick_when_due(watch) == (1.0 + REDIAL_S, [Down("b")])


def test_a_link_whose_connection_brought_nothing_has_the_other_half_of_the_time_out() -> None:
    watch = up()
    tick_until(watch, 1.0)
    watch.broke("b", 1.0, given_up=True)
    assert tick_when_due(watch) == (1.0 + TIMEOUT_S / 2, [Down("b")])


def test_a_silent_node_is_down_no_later_for_a_connection_that_was_given_up_late() -> None:
    """A kernel took 1.9 s for its time-out of 1 s. The dial had another second, and a master that
    was cut off kept its clients for 3 s instead of 2.5."""
    watch = up()
    tick_until(watch, 1.7)
    watch.broke("b", 1.7, given_up=True)
    assert tick_when_due(watch) == (TIMEOUT_S * 1.125, [Down("b")])
    # But a dial has the time that it has without that.
    watch = up()
    tick_until(watch, 2.2)
    watch.broke("b", 2.2, given_up=True)
    assert tick_when_due(watch) == (2.2 + REDIAL_S, [Down("b")])


def test_a_link_whose_connection_brought_nothing_is_mended_in_time() -> None:
    watch = up()
    tick_until(watch, 1.0)
    watch.broke("b", 1.0, given_up=True)
    assert tick_until(watch, 1.9) == []
    assert watch.opened("b", 1.9) == [Up("b")]
    assert tick_until(watch, 3.0) == []


def test_a_node_that_was_never_reached_is_down_when_its_dial_fails_or_hangs() -> None:
    assert detector().dial_failed("b") == [Down("b")]
    assert tick_when_due(detector()) == (TIMEOUT_S, [Down("b")])


def test_a_node_that_is_down_is_so_until_its_link_opens() -> None:
    watch = detector()
    watch.dial_failed("b")
    watch.heard("b", 3.0)
    assert watch.next_deadline() is None
    assert watch.tick(100.0) == []
    assert watch.opened("b", 101.0) == [Up("b")]
    assert watch.down() == []


def test_a_session_that_breaks_after_its_node_was_found_silent_says_nothing_more() -> None:
    watch = up()
    tick_when_due(watch)
    watch.broke("b", 3.0)
    assert watch.contact("b") is Contact.DOWN
    assert watch.next_deadline() is None


def test_a_process_that_was_stopped_itself_suspects_nobody_for_it() -> None:
    watch = up()
    watch.wanted("c", 0.0)
    watch.opened("c", 0.0)
    tick_until(watch, 0.5)
    assert watch.tick(60.0) == []
    # The messages of that time are read now. Who has sent none is found out soon.
    watch.heard("b", 60.1)
    at, found = tick_when_due(watch)
    assert found == [Silent("c"), Down("c")]
    assert 60.5 < at < 60.0 + TIMEOUT_S


@pytest.mark.parametrize("late_s", [0.3, 0.5, 1.0, 3.0])
def test_a_busy_process_finds_a_silent_node_though_all_its_ticks_are_late(late_s: float) -> None:
    """Each late tick began all silences anew, so that none was ever long enough."""
    at, found = tick_when_due(up(), late_s=late_s)
    assert found == [Silent("b"), Down("b")]
    assert at < 2 * TIMEOUT_S + 5 * late_s


def test_a_busy_process_suspects_nobody_that_it_hears() -> None:
    watch = up()
    now = 0.0
    for _ in range(100):
        now += 1.9
        assert watch.tick(now) == []
        watch.heard("b", now)


def test_a_dial_has_its_time_though_this_process_was_away() -> None:
    watch = up()
    watch.broke("b", 0.1)
    assert watch.tick(5.0) == []
    assert tick_when_due(watch) == (5.0 + REDIAL_S, [Down("b")])


def test_a_node_with_which_no_link_is_wanted_is_neither_up_nor_down() -> None:
    watch = up()
    watch.unwanted("b")
    assert watch.contact("b") is None
    assert watch.next_deadline() is None
    assert watch.opened("b", 1.0) == []
    assert watch.dial_failed("b") == []
