"""Elision: publishes whose messages were removed before a round has written them.

Their bodies never reach the disk. The record of such a publish is written as its outline, and its
bodies in the message store become holes. The op keeps its number, its positions and its producer's
sequence, so the state after each op is the same as without elision.

The danger: a power cut in the middle of the round may keep the publish and lose the remove.

1. The round's one write begins: an elided publish of positions 5 to 9, then the remove of 5 to 9.
2. The power is cut. The first half of the write is on the disk, the second isn't.
3. At the next start positions 5 to 9 are live, and their bodies are nowhere. Without a mirror that
   has them they would be reported as damaged, and wait for an operator.

So the record names the offset at which its round ends. A reader believes the record, and all
records behind it, only if the log is valid up to that offset (`format.journal_records.Pending`).
Otherwise the log ends before the record, as if the tail had been torn there. That breaks no
promise: no op of a round is reported durable before all of them are.

A consumer is given confirmed messages only, so a message that it acknowledges was written before.
Elision is for messages that nobody has seen (drop-head, expiry, purge), and for a replica that
isn't synchronised and receives faster than its disk writes.

Invariants
* Publish and remove are in the same piece of the same journal: neither was reported durable, and no
  record on the disk refers to the bodies. A publish that a round has taken, or that is in a journal
  that was sealed since, is written whole.
* Every message of the publish is dead. If one lives, the record has to be whole.
* Its bodies in the message store are released at once, not when the round is durable: nothing can
  bring back a record that refers to them.
"""

from __future__ import annotations

from ringmq_base.ranges import RangeSet
from ringmq_base.values import value
from ringmq_node.storage.format.journal_records import ELIDED
from ringmq_node.storage.format.records import (
    RECORD_HEADER_BYTES,
    RecordKind,
    moved_header,
    parse_header,
    record_header,
)


@value
class Gathered:
    """A persistent publish that waits for its round: its record's offset, its positions `first` to
    `last`, and its outline.

    `body_bytes` doesn't count bodies that another queue had put into the message store before.
    """

    offset: int
    first: int
    last: int
    body_bytes: int
    outline: bytes


class Elision:
    """The publishes that a queue has gathered in its current journal since its last round."""

    def __init__(self) -> None:
        self._gathered: list[Gathered] = []
        self._removed = False

    def published(self, gathered: Gathered) -> None:
        self._gathered.append(gathered)

    def removed(self) -> None:
        """Messages were removed. Without this, `take` has nothing to look for."""
        self._removed = True

    def take(self, live: RangeSet) -> list[Gathered]:
        """The publishes without a live message. Those that are gathered from now on belong to the
        next round."""
        gathered, self._gathered = self._gathered, []
        removed, self._removed = self._removed, False
        if not removed:
            return []
        return [one for one in gathered if not live.meets(one.first, one.last)]


def reframe(
    marker: int, offset: int, buffers: list[bytes], outlines: dict[int, bytes]
) -> tuple[list[bytes], dict[int, int]]:
    """Rewrites records that were to be written at `offset`, some of them without their bodies.

    `buffers` has the file's header if `offset` is 0, then header and payload of each record.
    `outlines` has, by offset, the outlines of the publishes to elide. Returns the new buffers, and
    the new offset of each record that has moved, by its old one.
    """
    # Records are pairs of buffers; an odd number of buffers begins with the file's header.
    skipped = len(buffers) % 2
    at = offset + sum(map(len, buffers[:skipped]))
    size = sum(map(len, buffers))
    places: list[int] = []
    for header, payload in zip(buffers[skipped::2], buffers[skipped + 1 :: 2], strict=True):
        places.append(at)
        if at in outlines:
            size -= len(payload) - ELIDED.size - len(outlines[at])
        at += len(header) + len(payload)
    end = ELIDED.pack(offset + size)
    first = places.index(min(outlines))
    kept = buffers[: skipped + 2 * first]
    moved: dict[int, int] = {}
    at = places[first]
    for index in range(first, len(places)):
        header, payload = buffers[skipped + 2 * index : skipped + 2 * index + 2]
        was = places[index]
        if was in outlines:
            payload = end + outlines[was]
            header = _elided_header(marker, was, at, header, payload)
        else:
            header = moved_header(marker, at, header)
        moved[was] = at
        kept += (header, payload)
        at += RECORD_HEADER_BYTES + len(payload)
    return kept, moved


def _elided_header(marker: int, was: int, at: int, header: bytes, payload: bytes) -> bytes:
    said = parse_header(marker, was, header)
    assert said is not None
    assert said.kind in (RecordKind.OP, RecordKind.STORED_OP), said
    return record_header(
        marker,
        at,
        RecordKind.ELIDED_OP,
        payload,
        number=said.number,
        epoch=said.epoch,
        synced=said.synced,
    )
