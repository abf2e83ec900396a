"""An error that nobody announced fails its test, and so does an announced one that doesn't come."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from expected_logs import DAMAGE, ExpectedLogs, Recorder

PREFIX = "2026-01-02 03:04:05,678"
DAMAGED = f"{PREFIX} ERROR   ringmq_node.storage.store: q/journal.jif: 31 bytes at 0: bad crc"
RAISED = [
    f"{PREFIX} ERROR   asyncio: Exception in callback at 0.idx: 4 bytes at 8: torn",
    "Traceback (most recent call last):",
    "AssertionError",
]


def test_an_unannounced_error_is_shown_with_its_place() -> None:
    with pytest.raises(AssertionError, match=r"a\.log:2: .*bad crc"):
        ExpectedLogs().judge([("a.log", ["ringmq node a ready", DAMAGED])])


def test_an_announced_error_passes_in_any_log() -> None:
    ExpectedLogs(demanded=[DAMAGE]).judge([("a.log", []), ("b.log", [DAMAGED])])


def test_an_announced_error_that_does_not_come_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="no node has logged"):
        ExpectedLogs(demanded=[DAMAGE]).judge([("a.log", [])])
    ExpectedLogs(allowed=[DAMAGE]).judge([("a.log", [])])


def test_a_traceback_is_never_damage() -> None:
    """Its message may name a file and a place, like a report of damage does."""
    with pytest.raises(AssertionError, match="AssertionError"):
        ExpectedLogs(allowed=[DAMAGE]).judge([("a.log", RAISED)])


def raised() -> None:
    try:
        raise ValueError("planted")
    except ValueError:
        logging.getLogger("planted").warning("a warning with a traceback", exc_info=True)


@pytest.mark.may_log("planted")
@pytest.mark.parametrize(
    ("log", "faults"),
    [
        (lambda: logging.getLogger("planted").error("an error"), 1),
        (raised, 1),
        (lambda: logging.getLogger("planted").warning("only a warning"), 0),
    ],
    ids=["error", "traceback", "warning"],
)
def test_faults_of_this_process_are_recorded(log: Callable[[], None], faults: int) -> None:
    with Recorder() as recorder:
        log()
    assert len(recorder.faults()) == faults


def test_a_test_that_nobody_hears_is_found_out() -> None:
    """A fuzzer's own test switched logs off, and each test after it passed whatever it logged."""
    with Recorder() as recorder:
        assert not recorder.deaf()
        logging.disable(logging.CRITICAL)
        try:
            assert "switched off" in recorder.deaf()
        finally:
            logging.disable(logging.NOTSET)
        logging.getLogger().removeHandler(recorder)
        assert "replaced" in recorder.deaf()
