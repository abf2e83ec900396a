"""Which messages of a batch a queue has already, by the sequences of their producer (G4).

A producer that publishes to one queue numbers its messages for that queue: they follow one another
without a gap, and a batch after one that was refused is told from it by the gap. A producer that
publishes through an exchange gives the queue a part of its messages: `with_gaps`. Then any
sequence may come, and the gaps in the replicated state (`queue.gaps`) tell what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringmq_base.ranges import Range
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.queue.block import Block
from ringmq_node.queue.gaps import SequenceStanding
from ringmq_node.queue.state import ReplicatedState

# First and last sequence; whether the queue has these messages.
BatchPart = tuple[int, int, bool]


def check_sequence(
    queue: str, producers: Mapping[bytes, int], producer_id: bytes, first_sequence: int
) -> int:
    """The last sequence that `queue` has of a producer, whose next batch begins so.

    0 without a producer id: then nothing is compared. Raises `BrokerError` unless the batch repeats
    enqueued sequences or follows them without a gap.
    """
    if not producer_id:
        return 0
    known = producers.get(producer_id)
    if known is None and first_sequence != 1:
        raise BrokerError(
            Reason.UNKNOWN_PRODUCER,
            f"queue {queue!r} knows nothing of this producer, "
            f"whose batch begins with {first_sequence}",
            queue=queue,
        )
    following = (known or 0) + 1
    if first_sequence > following:
        raise BrokerError(
            Reason.SEQUENCE_GAP,
            f"the batch begins with {first_sequence}, {following} is next",
            queue=queue,
            expected=following,
        )
    return known or 0


def parts_without_gaps(known: int, first: int, last: int) -> list[BatchPart]:
    """`known`: what `check_sequence` has said."""
    if known < first:
        return [(first, last, False)]
    if known >= last:
        return [(first, last, True)]
    return [(first, known, True), (known + 1, last, False)]


def parts_with_gaps(
    queue: str, state: ReplicatedState, producer_id: bytes, first: int, last: int
) -> list[BatchPart]:
    """Raises `BrokerError` if the queue can't tell of some of them whether it has them."""
    known = state.producers.get(producer_id, 0)
    parts: list[BatchPart] = []
    for low, high, standing in state.gaps.judge(producer_id, known, first, last):
        if standing is SequenceStanding.FORGOTTEN:
            raise BrokerError(
                Reason.SEQUENCE_FORGOTTEN,
                f"queue {queue!r} doesn't know any more whether it has the messages {low} to "
                f"{high} of this producer, which has had {known} since",
                queue=queue,
                first=low,
                last=high,
            )
        parts.append((low, high, standing is SequenceStanding.STORED))
    return parts


def block_of_part(
    bodies: Sequence[bytes], properties: Sequence[bytes], start: int, count: int
) -> Block:
    """`count` messages of a batch, from `start` on. `properties`: as those of the batch."""
    if count == len(bodies):
        return Block.of(bodies, properties)
    stop = start + count
    own = properties[start:stop] if len(properties) > 1 else properties
    return Block.of(bodies[start:stop], own)


def blocks_of(
    bodies: Sequence[bytes], properties: Sequence[bytes], first: int, ranges: Sequence[Range]
) -> list[tuple[Range, Block]]:
    """Of a batch that begins with `first`: the messages with these sequences."""
    return [
        ((low, high), block_of_part(bodies, properties, low - first, high - low + 1))
        for low, high in ranges
    ]


def check_numbering(
    queue: str, state: ReplicatedState, producer_id: bytes, *, with_gaps: bool
) -> None:
    """A publisher whose sequences have no gaps takes all up to the last one for stored. Raises
    `BrokerError` if that isn't so, as this producer has published through an exchange."""
    if not with_gaps and producer_id in state.gaps:
        raise bad_request(
            f"queue {queue!r} has a part of what this producer published through an exchange: "
            "publish to the queue under another producer id",
            field="producer_id",
        )
