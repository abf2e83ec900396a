"""The effects of a queue's master: the commands of its core to the replica around it.

The caller carries them out in the order in which they are listed. An op is done when the
master has been told of it: the caller gives a `MulticastOp` to the ring, passes the op back
to `QueueMaster.applied` once it has been applied here, and only then goes on to the next
effect. If the ring refuses the op, the caller keeps it, and every op after it, until the
ring takes it: no op may overtake another.
"""

from __future__ import annotations

from enum import Enum

from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.ops import AskedOp
from ringmq_node.queue.run import Run


@value
class MulticastOp:
    """Send `op` around the ring."""

    op: AskedOp


@value
class DeliverRuns:
    """Give these messages to `consumer`. They are outstanding until it settles them."""

    consumer: int
    runs: tuple[Run, ...]


@value
class DeliverMore:
    """Call `deliver_more` in another turn: there is more to deliver than one piece of work."""


@value
class ConfirmSequences:
    """Tell `publisher` that the messages of these sequences are safe."""

    publisher: int
    sequences: tuple[Range, ...]


@value
class ReportSettled:
    """Tell `owner` that its removal of these positions is safe: no master will deliver them.

    A consumer is told of its acks as they become safe, in several parts. A `take`, a `purge`
    and a `discard_damaged` are told once, when all of their positions are safe.
    """

    owner: int
    positions: tuple[Range, ...]


@value
class ReportBarrier:
    """Tell `waiter` that an op which was sent after it began to wait is safe."""

    waiter: int


@value
class Letters:
    """Dead letters of one reason: the first message of `run` has the number `first_letter`."""

    first_letter: int
    reason: DeathReason
    run: Run


@value
class SendLetters:
    """Publish these to the dead-letter target, in this order and behind all that were sent before,
    and tell the core (`letters_gone`) when the target has confirmed them."""

    letters: tuple[Letters, ...]


@value
class TellActive:
    """Tell `consumer` whether it is given messages, in a queue where only one is."""

    consumer: int
    active: bool


@value
class TellShort:
    """Tell `consumer` whether a message, of `needs_bytes`, waits for its share of a window."""

    consumer: int
    short: bool
    needs_bytes: int


class EndReason(Enum):
    """Why the queue ends a consumer that didn't ask for it."""

    # A newer stream of the same consumer is there.
    REPLACED = "replaced"
    # It has held a message for longer than the queue allows.
    TIMED_OUT = "timed out"


@value
class EndConsumer:
    """End the stream of `consumer`: it is gone, and its messages go back to their places."""

    consumer: int
    reason: EndReason


Effect = (
    MulticastOp
    | DeliverRuns
    | DeliverMore
    | ConfirmSequences
    | ReportSettled
    | ReportBarrier
    | SendLetters
    | TellActive
    | TellShort
    | EndConsumer
)
