"""The logs of a test's nodes: every error in them is a failure unless the test says it comes.

In-process nodes log into the test's own process. A conftest that imports `judged_logs` has it
watched for all tests below, and a test that provokes an error names it:

    @pytest.mark.logs("journal.jif: 85 bytes at 224: payload has checksum")
    def test_a_damaged_body_is_missing_from_then_on() -> None: ...

`logs` demands that the error comes. Otherwise the expression outlives the error that it was
written for, and excuses the next one that looks like it. `may_log` allows it and demands nothing:
for modules whose subject is damage, where some of the cases report it.

Clusters of processes and of containers have `cluster.expect_log(...)`, and judge on the way out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import pytest

from ringmq_base.logs import LOG_FORMAT, LogFault, log_faults

# A store names the file, length and place of a record that it can't read; a replica counts the
# damaged places when it opens its store, and names the messages that no other replica could give
# back. A traceback is never part of such a report.
DAMAGE = (
    r"(?s)\A(?!.*Traceback \().*"
    r"(\d+ bytes at \d+: |damage in \d+ places, |"
    r"messages are damaged here and no synchronised replica gives them)"
)
# gRPC has one poller for all loops of a process. A test process has a loop for each test and for
# each command, one after the other, so a call's last event may reach a loop that is closed. A node
# has one loop for as long as it lives: in its own log this is an error.
CLOSED_LOOP = r"PollerCompletionQueue\._handle_events(?s:.*)RuntimeError: Event loop is closed"
# A server that stops cancels the calls that go on. If such a call ends by itself in that moment,
# gRPC logs the cancellation as an error of the handler. It has warned of "server stop" before.
STOPPED_SERVER = (
    r"Exception not handled by _handle_exceptions(?s:.*)asyncio\.exceptions\.CancelledError\s*\Z"
)
FAULTS_SHOWN = 5
FAULT_CHARACTERS_SHOWN = 4000


@dataclass
class ExpectedLogs:
    """The errors that a test provokes on purpose, as regular expressions."""

    demanded: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def judge(self, logs: Iterable[tuple[str, Iterable[str]]]) -> None:
        """`AssertionError` for an error that nobody expects, or a demanded one that didn't come.

        `logs` are pairs of a log's name and its lines.
        """
        faults = [fault for name, lines in logs for fault in log_faults(name, lines)]
        known = [re.compile(each) for each in [*self.demanded, *self.allowed]]
        unexpected = [
            fault for fault in faults if not any(each.search(fault.text) for each in known)
        ]
        assert not unexpected, _shown(unexpected)
        for pattern in self.demanded:
            came = any(re.search(pattern, fault.text) for fault in faults)
            assert came, f"no node has logged the expected error {pattern!r}"


def _shown(faults: list[LogFault]) -> str:
    head = f"{len(faults)} unexpected errors in the logs of nodes"
    shown = [str(fault)[:FAULT_CHARACTERS_SHOWN] for fault in faults[:FAULTS_SHOWN]]
    return "\n".join([head, *shown])


class Recorder(logging.Handler):
    """`with Recorder() as recorder`: keeps every record of this process that could be a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(LOG_FORMAT))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info or "Traceback (" in str(record.msg):
            self.lines += self.format(record).split("\n")

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def deaf(self) -> str:
        """Why an error of a node would not be heard; empty if it would be."""
        if self not in logging.getLogger().handlers:
            return "the handlers of the root logger were replaced"
        if not logging.getLogger("ringmq_node").isEnabledFor(logging.ERROR):
            return "logs are switched off"
        return ""

    def faults(self) -> list[LogFault]:
        return log_faults("this process", self.lines)


@pytest.fixture(autouse=True)
def judged_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in whose process an error was logged that the test didn't announce."""
    expected = ExpectedLogs(
        [mark.args[0] for mark in request.node.iter_markers("logs")],
        [
            CLOSED_LOOP,
            STOPPED_SERVER,
            *(mark.args[0] for mark in request.node.iter_markers("may_log")),
        ],
    )
    with Recorder() as recorder:
        yield
        deaf = recorder.deaf()
        # The tests that come after it in this process are heard again.
        logging.disable(logging.NOTSET)
    assert not deaf, f"the test has made its own log unheard: {deaf}"
    expected.judge([("this process", recorder.lines)])
