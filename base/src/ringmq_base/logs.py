"""Faults in a node's log: the one rule by which tests, demo and benchmark judge a node.

A node that logs an error or a traceback is faulty even if every message arrived: a torn link, for
example, is repaired before any client notices it. So each run of a cluster reads its nodes' logs
at the end and fails on every fault that it did not provoke itself.

Faults are: a record at level ERROR or CRITICAL; a traceback, at every level and also outside of
any record; a fatal error of the interpreter; an error line of grpc's C core.
A warning is not a fault: nodes warn of a dead neighbour, and a dead neighbour is the test.

`log_faults` is a pure function over lines, so that a file, a container's output and a list in a
test are all read by it. It keeps no state between calls: a caller that looks at a growing log
twice is given the older faults again.

A record is one line in `LOG_FORMAT` and every line after it up to the next record, because a
message or a traceback may have several. Two threads that write at once can interleave records
but not lines; a traceback without a record above it is attached to the record before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

# Nodes write this format and `_RECORD` reads it.
LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# Lines of one fault that are kept; a message may have more. The interpreter shortens a
# traceback that repeats itself, so a whole traceback fits.
FAULT_LINES_MAX: Final = 400

_RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) +\S+: ")
# grpc's C core writes past `logging`: "E0000 00:00:1763780000.1  4711 file.cc:12] message".
_C_CORE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d[\d.]* +\d+ \S+:\d+\] ")
_TRACEBACK = re.compile(r"[ |+]*(?:Exception Group )?Traceback \(most recent call last\):")
_FATAL = re.compile(r"Fatal Python error: |Exception ignored in: ")
# The sentences between two tracebacks that belong to one exception.
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FAULTY_LEVELS = frozenset({"ERROR", "CRITICAL", "E", "F"})


@dataclass(frozen=True, slots=True)
class LogFault:
    """An error or a traceback in a log, with its place. `str` gives both, as an editor reads it."""

    file: str
    line: int  # of the record's first line, counted from 1
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def log_faults(file: str, lines: Iterable[str], *, expected: Iterable[str] = ()) -> list[LogFault]:
    """The faults in `lines` that match none of the regular expressions `expected`, in order.

    `file` only names the source in the faults. An expression is searched in the fault's whole
    text, traceback included, so that it can name a logger, a message or an exception.
    """
    patterns = [re.compile(each) for each in expected]
    faults: list[LogFault] = []
    for entry in _entries(lines):
        if entry.is_fault:
            text = "\n".join(entry.lines)
            if not any(pattern.search(text) for pattern in patterns):
                faults.append(LogFault(file, entry.line, text))
    return faults


class _Entry:
    """A record and the lines that follow it, or lines that no record precedes."""

    __slots__ = ("has_traceback", "is_fault", "line", "lines")

    def __init__(self, line: int, *, is_fault: bool) -> None:
        self.line = line
        self.lines: list[str] = []
        self.is_fault = is_fault
        self.has_traceback = False

    def add(self, text: str) -> None:
        if len(self.lines) < FAULT_LINES_MAX:
            self.lines.append(text)
        if _TRACEBACK.match(text):
            self.is_fault = self.has_traceback = True


def _entries(lines: Iterable[str]) -> Iterator[_Entry]:
    entry = _Entry(1, is_fault=False)
    before = ""
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        level = _level(text)
        if level is not None or _is_another(entry, text, before):
            yield entry
            entry = _Entry(number, is_fault=level in _FAULTY_LEVELS)
        entry.add(text)
        before = text or before
    yield entry


def _level(text: str) -> str | None:
    """The level of the record that begins with this line; None if no record begins here."""
    if found := _RECORD.match(text) or _C_CORE.match(text):
        return found[1]
    return "CRITICAL" if _FATAL.match(text) else None


def _is_another(entry: _Entry, text: str, before: str) -> bool:
    """Whether this line begins a traceback that doesn't belong to `entry`.

    A thread that dies writes its traceback to stderr, past `logging`. Attached to an *expected*
    error that happens to stand above it, that traceback would be excused along with the error.
    """
    return entry.has_traceback and text.startswith("Traceback (") and before not in _CHAINED
