"""Errors of task groups, for a command line that has one line to say what is wrong."""

from __future__ import annotations


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
