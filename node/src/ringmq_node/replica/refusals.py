"""The refusals of a replica that can't do, at the moment, what a master does."""

from __future__ import annotations

from ringmq_gm import Refusal, Role, View
from ringmq_node.model.reasons import BrokerError, Reason


def not_serving(queue: str, role: Role) -> BrokerError:
    """A replica that can't serve clients of `queue` now."""
    reason = Reason.NO_MASTER if role is Role.MASTER else Reason.NOT_MASTER
    return BrokerError(reason, f"queue {queue!r}: this node is not its master now", queue=queue)


def too_few_synchronised(queue: str, view: View) -> BrokerError:
    """No op can be confirmed in this view."""
    return BrokerError(
        Reason.TOO_FEW_SYNCHRONISED,
        f"queue {queue!r}: {len(view.synced)} replicas are synchronised, "
        f"{view.min_insync} are wanted",
        queue=queue,
        synchronised=len(view.synced),
        min_insync=view.min_insync,
    )


def no_trip(queue: str, epoch: int, waited_s: float) -> BrokerError:
    """A master that may have been replaced without knowing it."""
    return BrokerError(
        Reason.NO_MASTER,
        f"queue {queue!r}: no trip around the ring ended within {waited_s:g} s in epoch {epoch}; "
        "this node may not be its master any more, or a replica is slow",
        queue=queue,
        epoch=epoch,
    )


def takes_nothing(queue: str, refusal: Refusal) -> BrokerError:
    """The ring refuses ops for a while."""
    return BrokerError(
        Reason.DRAINING, f"queue {queue!r} takes nothing now: {refusal.value}", queue=queue
    )
