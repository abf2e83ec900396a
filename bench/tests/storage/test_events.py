"""The events of a measured process, told and read back."""

from __future__ import annotations

import pytest
from bench.storage.events import Event, EventReader, Teller


def test_events_carry_the_phase_and_total_of_their_begin() -> None:
    reader = EventReader()
    begin = reader.read('{"event": "begin", "phase": "fill", "total": 8, "at": 1.5}')
    progress = reader.read('{"event": "progress", "done": 3, "at": 2, "live_bytes": 7}')
    assert begin == Event("begin", "fill", 1.5, 0, 8, {})
    assert progress == Event("progress", "fill", 2, 3, 8, {"live_bytes": 7.0})


@pytest.mark.parametrize("line", ["", "hello\n", "{not json", '{"seconds": 1.0}'])
def test_lines_that_are_no_events_are_passed_over(line: str) -> None:
    assert EventReader().read(line) is None


def test_what_a_teller_says_is_read_back_and_progress_not_too_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller()
    teller.begin("fill", 10)
    for done in range(10):
        teller.progress(done)
    teller.end(10, more=4)
    teller.result(peak=5)
    reader = EventReader()
    events = [reader.read(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [each.event for each in events if each is not None]
    assert kinds == ["begin", "end", "result"]
    end = events[1]
    assert end is not None
    assert end.figures["more"] == 4
    assert 0 <= end.figures["cpu_s"] < 5
