"""A node's log, written by `logging` itself or copied from a node's stderr, and its faults."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import pytest

from ringmq_base.logs import FAULT_LINES_MAX, LOG_FORMAT, log_faults

INFO = "2026-11-22 02:59:48,123 INFO    ringmq_gm.links: link to n2 is up"
ERROR = "2026-11-22 02:59:49,004 ERROR   ringmq_gm.incoming: link from n2: bad frame"
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/x/links.py", line 7, in _run',
    "    raise KeyError(1)",
    "KeyError: 1",
]


def written(log: Callable[[logging.Logger], object]) -> list[str]:
    """The lines that a node's `logging` writes while `log` runs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger = logging.Logger("ringmq_node.node")
    logger.addHandler(handler)
    log(logger)
    return stream.getvalue().splitlines(keepends=True)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING])
def test_records_below_error_are_no_faults(level: int) -> None:
    assert log_faults("n1.log", written(lambda logger: logger.log(level, "ERROR in a text"))) == []


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_an_error_is_named_with_its_file_and_line(level: int) -> None:
    lines = [INFO, INFO, *written(lambda logger: logger.log(level, "disk %s", "full")), INFO]
    (fault,) = log_faults("n1.log", lines)
    assert (fault.file, fault.line) == ("n1.log", 3)
    assert fault.text.endswith("ringmq_node.node: disk full")
    assert str(fault) == f"n1.log:3: {fault.text}"


def test_a_traceback_belongs_to_its_record() -> None:
    def fail(logger: logging.Logger) -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError:
            logger.exception("a task\nhas failed")

    (fault,) = log_faults("n1.log", [*written(fail), INFO])
    assert fault.line == 1
    assert fault.text.startswith("20")
    assert "KeyError: 'first'" in fault.text
    assert fault.text.endswith("ValueError: second")


def test_a_traceback_is_a_fault_at_every_level() -> None:
    def warn(logger: logging.Logger) -> None:
        try:
            raise ExceptionGroup("several", [OSError("gone")])
        except ExceptionGroup:
            logger.warning("link lost", exc_info=True)

    (fault,) = log_faults("n1.log", [INFO, *written(warn)])
    assert fault.line == 2
    assert "OSError: gone" in fault.text


@pytest.mark.parametrize(
    "lines",
    [
        TRACEBACK,
        ["ringmq node n1 ready at 127.0.0.1:7001", *TRACEBACK],
        ["Exception ignored in: <function _Store.__del__ at 0x7f>", *TRACEBACK],
        ["Fatal Python error: Segmentation fault", "", "Thread 0x7f (most recent call first):"],
        ["E0000 00:00:1763780000.123456    4711 server.cc:12] bind failed"],
    ],
    ids=["traceback", "after a plain line", "in a finalizer", "crash", "C core"],
)
def test_faults_outside_of_records_are_found(lines: list[str]) -> None:
    (fault,) = log_faults("n1.log", lines)
    assert fault.text == "\n".join(lines)


def test_a_line_of_the_c_core_is_no_part_of_the_record_before() -> None:
    core = "W1122 02:59:48.123456789    4711 chttp2.cc:12] goaway"
    (fault,) = log_faults("n1.log", [ERROR, core])
    assert fault.text == ERROR


@pytest.mark.parametrize(
    "expected", ["link from n2", r"ringmq_gm\.incoming", "KeyError"], ids=lambda each: each
)
def test_an_expected_fault_is_passed_over(expected: str) -> None:
    lines = [ERROR, *TRACEBACK, INFO, ERROR.replace("n2", "n3").replace("incoming", "rings")]
    (fault,) = log_faults("n1.log", lines, expected=["never seen", expected])
    assert fault.line == 7


def test_an_expected_fault_excuses_no_second_traceback_after_it() -> None:
    """A dying thread's traceback stands right below an unrelated record."""
    stray = ["Exception in thread flush:", *TRACEBACK[:-1], "OSError: gone"]
    (fault,) = log_faults("n1.log", [ERROR, *TRACEBACK, *stray], expected=["link from n2"])
    assert fault.line == 7
    assert fault.text.endswith("OSError: gone")


def test_a_log_that_ends_in_the_middle_of_a_line_is_read() -> None:
    assert log_faults("n1.log", []) == []
    assert log_faults("n1.log", [INFO[:20]]) == []
    (fault,) = log_faults("n1.log", [INFO + "\n", ERROR[:60]])
    assert fault.line == 2


def test_a_fault_keeps_a_bounded_number_of_lines() -> None:
    (fault,) = log_faults("n1.log", [ERROR, *["more"] * FAULT_LINES_MAX * 2])
    assert fault.text.count("\n") == FAULT_LINES_MAX - 1
