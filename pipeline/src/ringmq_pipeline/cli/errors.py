"""The one table from errors to a line on stderr and an exit code.

The source runs in processes of Spark's, so its errors arrive as text, at the end of a traceback
inside Spark's own error. They are found there by their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import click

from ringmq.errors import BadRequestError, LeaseHeldError, PositionsError, RingMQError
from ringmq_pipeline.errors import JobError as JobError
from ringmq_pipeline.java import NoJavaError
from ringmq_pipeline.leases import SourceLeasedError
from ringmq_pipeline.offsets import DataLossError, OffsetError
from ringmq_pipeline.option_values import OptionError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_FOUND: Final = 3
EXIT_GONE: Final = 4
EXIT_LEASED: Final = 5
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Explained:
    line: str
    exit_code: int


# For their user, and no longer than he needs.
_OF_JOBS: Final = ("JobError", "RowsInTableError", "BatchBeyondTableError")
# By name: these come out of Spark as text alone.
_OF_WORKERS: Final = {
    "DataLossError": EXIT_GONE,
    "PositionsMovedError": EXIT_GONE,
    "PositionsGoneError": EXIT_GONE,
    "SourceLeasedError": EXIT_LEASED,
    "LeaseHeldError": EXIT_LEASED,
    "LeaseLostError": EXIT_LEASED,
    "NoQueueError": EXIT_FAILED,
    "OffsetError": EXIT_FAILED,
    "OptionError": EXIT_USAGE,
    "BadRequestError": EXIT_USAGE,
    **dict.fromkeys(_OF_JOBS, EXIT_FAILED),
}
_RAISED = re.compile(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_LINE_CHARACTERS: Final = 600


def explain(error: BaseException) -> Explained | None:
    """None: a bug, which is worth its traceback."""
    if isinstance(error, click.UsageError):
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        return Explained(error.format_message() + where, EXIT_USAGE)
    if isinstance(error, click.Abort):
        return Explained("interrupted", EXIT_INTERRUPTED)
    if isinstance(error, click.ClickException):
        return Explained(error.format_message(), error.exit_code)
    if isinstance(error, (OptionError, BadRequestError)):
        return Explained(str(error), EXIT_USAGE)
    if isinstance(error, (DataLossError, PositionsError)):
        return Explained(str(error), EXIT_GONE)
    if isinstance(error, (LeaseHeldError, SourceLeasedError)):
        return Explained(str(error), EXIT_LEASED)
    if isinstance(error, (JobError, NoJavaError, OffsetError, RingMQError, OSError)):
        return Explained(str(error), EXIT_FAILED)
    if type(error).__module__.split(".")[0] in ("pyspark", "py4j"):
        return _of_spark(str(error))
    return None


def _of_spark(text: str) -> Explained:
    raised = [(found[1], found[2].strip()) for found in _RAISED.finditer(text)]
    # The last is the outermost: what the others led to.
    for name, line in reversed(raised):
        if name in _OF_WORKERS:
            short = line if name in _OF_JOBS else line[:_LINE_CHARACTERS]
            return Explained(short, _OF_WORKERS[name])
    first = text.strip().partition("\n")[0] or "Spark failed without a word"
    if raised:
        first = ": ".join(raised[-1])
    return Explained(first[:_LINE_CHARACTERS], EXIT_FAILED)
