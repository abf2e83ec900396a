"""When a sync may hold the event loop up: `ringmq_node.storage.disk.sync_duration`."""

from __future__ import annotations

from ringmq_node.storage.disk.sync_duration import SyncDuration


def test_only_a_small_round_of_one_queue_is_done_in_place() -> None:
    duration = SyncDuration(bytes_max=100)
    assert duration.may_block(100, 1)
    assert not duration.may_block(101, 1)
    assert not duration.may_block(100, 2)
    assert not SyncDuration(bytes_max=0).may_block(1, 1)


def test_one_slow_answer_among_quick_ones_changes_nothing() -> None:
    duration = SyncDuration(bytes_max=100)
    duration.took(0.005)
    assert duration.may_block(1, 1)


def test_a_disk_that_has_become_slow_is_left_to_the_threads_until_it_is_quick_again() -> None:
    duration = SyncDuration(bytes_max=100)
    held_up = 0
    while duration.may_block(1, 1):
        duration.took(0.010)
        held_up += 1
    assert held_up <= 3
    for _ in range(100):
        duration.took(0.0002)
    assert duration.may_block(1, 1)
