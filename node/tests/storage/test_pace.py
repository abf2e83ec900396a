"""When a sync may hold the event loop up: `ringmq_node.storage.pace`."""

from __future__ import annotations

from ringmq_node.storage.pace import Pace


def test_only_a_small_round_of_one_queue_is_done_in_place() -> None:
    pace = Pace(bytes_max=100)
    assert pace.may_block(100, 1, now=0.0)
    assert not pace.may_block(101, 1, now=0.0)
    assert not pace.may_block(100, 2, now=0.0)
    assert not Pace(bytes_max=0).may_block(1, 1, now=0.0)


def test_after_a_slow_answer_threads_do_the_work_for_a_while() -> None:
    pace = Pace(bytes_max=100)
    pace.took(pace.slow_s, now=10.0)
    assert pace.may_block(1, 1, now=10.0)
    pace.took(pace.slow_s * 2, now=10.0)
    assert not pace.may_block(1, 1, now=10.0 + pace.pause_s / 2)
    assert pace.may_block(1, 1, now=10.0 + pace.pause_s)
