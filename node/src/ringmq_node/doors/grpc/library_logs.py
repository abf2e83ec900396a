"""What the gRPC library logs at ERROR although nothing is wrong with the node."""

from __future__ import annotations

import logging

LIBRARY_LOGGER = "grpc._cython.cygrpc"


class _CallerHasGone(logging.Filter):
    """Drops the report that a call's status couldn't be sent.

    Its caller went away a moment before, in the middle of a refused message for example. The
    library logs that as an ERROR with a traceback, and an operator would look for a fault.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return type(error).__name__ != "ExecuteBatchError" or (
            "SendStatusFromServerOperation" not in str(error)
        )


_CALLER_HAS_GONE = _CallerHasGone()


def quieten() -> None:
    """May be called again: a logger takes the same filter once."""
    logging.getLogger(LIBRARY_LOGGER).addFilter(_CALLER_HAS_GONE)
