"""Which failures allow another attempt, and how long to wait before it."""

from __future__ import annotations

from tenacity import RetryCallState, wait_random_exponential

from ringmq.errors import (
    DiskFullError,
    NotRingMQError,
    OutcomeUnknownError,
    RetryableError,
    RingMQError,
    StoreFailedError,
    UnavailableError,
)

#: A node whose disk failed leaves its rings: how long another one may take to go on.
SUCCESSOR_S = 5.0
RETRY_FIRST_S = 0.02
RETRY_MAX_S = 0.5


class NotConnectedError(UnavailableError):
    """The node has surely not seen the call. To callers it is an `UnavailableError`."""


def is_retryable(error: BaseException) -> bool:
    """Whether the same idempotent call may be made again, here or at another node.

    `NotRingMQError` is: one wrong seed must not hide the right ones.
    """
    return isinstance(error, RetryableError | OutcomeUnknownError | NotRingMQError)


def is_refused(error: BaseException) -> bool:
    """Whether the call surely had no effect, so that one that is not idempotent may be repeated.

    An `UnavailableError` without a reason is gRPC's own: the connection may have broken while
    the answer was on its way.
    """
    return (isinstance(error, RetryableError) and bool(error.reason)) or isinstance(
        error, NotRingMQError | NotConnectedError
    )


def is_nodes_own(error: BaseException | None) -> bool:
    """Whether it is the disk of one node that failed: the others go on without it."""
    return isinstance(error, DiskFullError | StoreFailedError)


_jitter = wait_random_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MAX_S)


def retry_wait_s(state: RetryCallState) -> float:
    """The node's hint, or exponential backoff with full jitter, whichever is longer."""
    error = state.outcome.exception() if state.outcome is not None else None
    hint = error.retry_after_s if isinstance(error, RingMQError) else 0.0
    return max(hint, _jitter(state))
