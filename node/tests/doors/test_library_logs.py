"""Which records of the gRPC library are no fault of a node."""

from __future__ import annotations

import logging

import pytest

from ringmq_node.doors.grpc import library_logs


class ExecuteBatchError(Exception):
    """As the library's own, which can't be made from here."""


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (
            ExecuteBatchError('Failed "execute_batch": (<SendStatusFromServerOperation at 0x7f>,)'),
            0,
        ),
        (ExecuteBatchError('Failed "execute_batch": (<ReceiveMessageOperation at 0x7f>,)'), 1),
        (ValueError("SendStatusFromServerOperation"), 1),
        (None, 1),
    ],
)
def test_only_a_status_that_nobody_waits_for_is_dropped(
    error: Exception | None, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    library_logs.quieten()
    library_logs.quieten()
    logger = logging.getLogger(library_logs.LIBRARY_LOGGER)
    assert len(logger.filters) == 1
    logger.warning("raised in core", exc_info=error)
    assert len(caplog.records) == kept
