from __future__ import annotations

from bench.measure import Point
from bench.peers.windows import Windows


def test_each_queue_has_a_window_of_its_own_and_its_share() -> None:
    windows = Windows(Point(count=5, size_bytes=1, window=2, queues=2), 1)
    assert [windows.take(0, 0.0), windows.take(0, 0.0), windows.take(0, 0.0)] == [1, 1, 0]
    assert [windows.take(1, 1.0), windows.take(1, 1.0)] == [1, 1]
    assert windows.confirm(3, 4.0) == 1
    assert windows.take(1, 4.0) == 0, "its share is two"
    assert windows.confirm(1, 1.0) == 0
    assert windows.take(0, 2.0) == 1
    for number in (2, 4, 5):
        assert not windows.are_done
        windows.confirm(number, 3.0)
    assert windows.are_done
    report = windows.report(seconds=4.0, client_cpu_s=0.5)
    assert (report.acked, report.p50_ms, report.max_ms) == (5, 2e3, 3e3)


def test_a_frame_waits_for_room_for_all_of_it_and_the_last_is_short() -> None:
    windows = Windows(Point(count=7, size_bytes=1, window=5), 2)
    assert [windows.take(0, 0.0) for _ in range(3)] == [2, 2, 0]
    windows.confirm(1, 1.0)
    assert [windows.take(0, 1.0) for _ in range(2)] == [2, 1]
    assert windows.frames == 4
