"""Exit codes, and the one error that a command reports when a task group raised several."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
#: A guarantee that the command checks doesn't hold.
EXIT_BROKEN = 3
EXIT_INTERRUPTED = 130


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, however deep groups are nested."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
