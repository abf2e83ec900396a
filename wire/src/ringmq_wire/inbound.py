"""The budgets of messages that have come in, which the connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_wire.options import WireOptions
from ringmq_wire.unfinished import UnfinishedBytes
from ringmq_wire.unread import UnreadBytes


@dataclass(frozen=True, slots=True)
class SharedBudgets:
    """Of a server."""

    # The beginnings of messages that aren't whole yet.
    unfinished: UnfinishedBytes
    # Whole messages that the application hasn't consumed.
    unread: UnreadBytes


def own_budgets(
    options: WireOptions, shared: SharedBudgets | None
) -> tuple[UnfinishedBytes, UnreadBytes]:
    """Those of one connection. A client's connections share nothing."""
    if shared is None:
        unread = UnreadBytes(options.unread_bytes_max)
        return UnfinishedBytes(options.unfinished_bytes_max), unread
    return UnfinishedBytes(options.unfinished_bytes_max, shared.unfinished), shared.unread
