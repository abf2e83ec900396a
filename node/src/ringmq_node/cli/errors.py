"""Exit codes, and errors of task groups for a command line with one line to say what is wrong."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
#: A guarantee that the command checks doesn't hold.
EXIT_BROKEN = 3
EXIT_INTERRUPTED = 130


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
