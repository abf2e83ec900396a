"""Whether two replicas have the same messages, though their queue is in use. Pure.

Replicas that have applied the same op are equal, but two that are asked beside the traffic answer
as of different ops. No common op is needed, because a position only ever goes one way: it isn't
given out yet, then live, then gone; and a live one may become redelivered, never the reverse. So

* the replica that is behind may still have what the other has given away, and may lack what the
  other has got since. Such positions are *unsettled*: the one behind is asked again, as of the
  op of the other or later;
* anything else that differs is a difference. So is an unsettled position that differs the same way
  when the replica that was behind is ahead.

Bodies and properties of a position never change. They are compared by hashes.

The rest of a state has counts, priorities, deadlines, producers and more, which change either way.
They are compared where two answers happen to be as of the same op: always in a queue at rest.

Only answers of one epoch are compared: before a failover is over, a replica may hold a tail of
unconfirmed messages that the ring has given up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.model.info import Difference, DifferenceKind
from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run

HASH_BYTES = 8
DIGEST_BYTES = 2 * HASH_BYTES


@dataclass(frozen=True, slots=True)
class Digests:
    """What one replica has at the positions `first..last`, as of op `number`."""

    node: str
    epoch: int
    number: int
    next_position: int
    first: int
    last: int
    live: RangeSet
    redelivered: RangeSet
    transient: RangeSet
    missing: RangeSet
    # Of each live position that isn't missing, in order.
    digests: bytes
    bytes_read: int
    # Of the whole state; empty if the node doesn't tell it.
    state_digest: str
    _places: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def digest_of(self, position: int) -> bytes:
        """The hashes of body and properties of a live position that isn't missing."""
        if not self._places:
            at = 0
            for there in _numbers(self.live.ranges()):
                if there not in self.missing:
                    self._places[there] = at
                    at += DIGEST_BYTES
        at = self._places[position]
        return self.digests[at : at + DIGEST_BYTES]

    def state_of(self, position: int) -> str:
        if position in self.live:
            return "live"
        return "gone" if position < self.next_position else "not there yet"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`unsettled`: `behind` has to be asked for these again, as of op `number` or later."""

    differences: list[Difference]
    unsettled: RangeSet
    behind: str = ""
    number: int = 0


def digests_of(runs: Sequence[Run]) -> bytes:
    """The hashes of all messages of `runs`, in order."""
    return b"".join(part for run in runs for part in _block_digests(run.block))


def _block_digests(block: Block) -> Iterator[bytes]:
    bodies, properties = block.bodies(), block.properties()
    if len(properties) == 1:
        properties = properties * len(bodies)
    shared = _hash(b"")
    for index, body in enumerate(bodies):
        yield _hash(body)
        yield _hash(properties[index]) if properties else shared


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def compare(one: Digests, other: Digests, among: RangeSet | None = None) -> Comparison:
    """`one` and `other` answer for the same positions in the same epoch. `among`: only these."""
    assert (one.epoch, one.first) == (other.epoch, other.first)
    ahead, behind = (one, other) if one.number >= other.number else (other, one)
    last = min(one.last, other.last)
    if among is None and _is_same(one, other):
        return Comparison([], RangeSet())
    differences: list[Difference] = []
    unsettled = RangeSet()
    for position in _positions(one, other, last) if among is None else _numbers(among.ranges()):
        # Asked again, the one that was behind is not late any more, whichever is ahead now.
        is_first = among is None and ahead.number > behind.number
        if is_first and _may_be_late(ahead, behind, position):
            unsettled.add(position, position)
            continue
        found = _difference(one, other, position)
        if found is not None:
            differences.append(found)
    return Comparison(differences, unsettled, behind.node, ahead.number)


def rest_differs(one: Digests, other: Digests) -> Difference | None:
    """Whether the whole states differ, as of one op. Of interest if all messages are equal."""
    if one.number != other.number or "" in (one.state_digest, other.state_digest):
        return None
    if one.state_digest == other.state_digest:
        return None
    has = one.state_digest, other.state_digest
    return _told(one, other, one.next_position, DifferenceKind.REST, *has)


def _is_same(one: Digests, other: Digests) -> bool:
    """The usual case, at the price of comparing a few ranges and one piece of bytes."""
    return (
        one.last == other.last
        and one.digests == other.digests
        and one.live == other.live
        and one.redelivered == other.redelivered
        and one.transient == other.transient
        and not one.missing
        and not other.missing
    )


def _positions(one: Digests, other: Digests, last: int) -> Iterator[int]:
    """All positions up to `last` that are live on either of them."""
    both = one.live.copy()
    both.update(other.live.ranges())
    return _numbers(both.intersection(one.first, last))


def _numbers(ranges: Iterable[Range]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def _may_be_late(ahead: Digests, behind: Digests, position: int) -> bool:
    """Whether `behind` may just not have applied the op that made the difference."""
    is_live, was_live = position in ahead.live, position in behind.live
    if is_live and was_live:
        return position in ahead.redelivered and position not in behind.redelivered
    if was_live:
        return position < ahead.next_position
    return is_live and position >= behind.next_position


def _difference(one: Digests, other: Digests, position: int) -> Difference | None:
    """What is different at a settled position."""
    here, there = one.state_of(position), other.state_of(position)
    if here != there:
        # The one that is ahead has given it away since: it went the way that positions go.
        ahead, behind = (one, other) if one.number > other.number else (other, one)
        went = ahead.state_of(position) == "gone" and behind.state_of(position) == "live"
        if one.number != other.number and went:
            return None
        return _told(one, other, position, DifferenceKind.STATE, here, there)
    if here != "live":
        return None
    for kind, mine, theirs in (
        (DifferenceKind.MISSING, one.missing, other.missing),
        (DifferenceKind.TRANSIENT, one.transient, other.transient),
        (DifferenceKind.REDELIVERED, one.redelivered, other.redelivered),
    ):
        if (position in mine) != (position in theirs):
            if kind is DifferenceKind.REDELIVERED and _became(one, other, position):
                continue
            return _told(
                one, other, position, kind, _yes(position in mine), _yes(position in theirs)
            )
    if position in one.missing:
        # Both lack it: then it is damaged everywhere, which is nobody's difference.
        return None
    mine_hash, theirs_hash = one.digest_of(position), other.digest_of(position)
    for kind, start in ((DifferenceKind.BODY, 0), (DifferenceKind.PROPERTIES, HASH_BYTES)):
        a, b = mine_hash[start : start + HASH_BYTES], theirs_hash[start : start + HASH_BYTES]
        if a != b:
            return _told(one, other, position, kind, a.hex(), b.hex())
    return None


def _became(one: Digests, other: Digests, position: int) -> bool:
    """Whether the one that is ahead has flagged the message since."""
    ahead = one if one.number > other.number else other
    return one.number != other.number and position in ahead.redelivered


def _told(
    one: Digests, other: Digests, position: int, kind: DifferenceKind, has: str, other_has: str
) -> Difference:
    return Difference(position, kind, one.node, has, other.node, other_has)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
