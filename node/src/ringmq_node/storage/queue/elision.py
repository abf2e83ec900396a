"""Publishes whose messages were removed before a round has written them.

Their bodies never reach the disk: the record of such a publish is written as its outline, and
what it had in the message store becomes a hole. The op keeps its number, its positions and its
producer's sequence, so the state at each op is what it would have been.

Why that is not simply done: a power cut in the middle of the round may keep the publish and lose
the remove. The state would be that of an op at which the messages live, and their bodies are
nowhere: without a mirror that has them they are damaged, and wait for an operator. So the record
says up to where the round goes (`journal_records.Pending`), and a reader believes it and all
behind it only if the log is valid up to there: else the log ends before it, as if the tail had been
torn there. Nothing is lost that was promised, since no op of a round is reported durable before
all are.

A consumer is given what is confirmed, so what it acknowledges was written before. Elided is what
is removed unseen (drop-head, expiry, purge), and what a replica that isn't synchronised receives
faster than its disk writes.

Invariants
* Publish and remove are in the same piece of the same journal: nobody was told of either, and no
  record that is on the disk refers to the bodies. A publish that a round has taken, or that is in
  a journal that was sealed since, is written as it is.
* All of the publish is dead. Of one that lives in part the record has to be whole.
* What is in the message store for it is released at once, and not when the round is durable:
  nothing can bring back what refers to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.format.journal_records import ELIDED
from ringmq_node.storage.format.records import (
    RECORD_HEADER_BYTES,
    RecordKind,
    moved_header,
    parse_header,
    record_header,
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A persistent publish that waits for its round: where its record is, what is in it.

    `body_bytes`: of bodies, but for those that another queue had in the message store before.
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
        """Something was removed: else there is nothing to look for."""
        self._removed = True

    def take(self, live: RangeSet) -> list[Gathered]:
        """Those of which nothing lives any more. The next ones are of the next round."""
        gathered, self._gathered = self._gathered, []
        removed, self._removed = self._removed, False
        if not removed:
            return []
        return [one for one in gathered if not live.intersection(one.first, one.last)]


def reframe(
    marker: int, offset: int, buffers: list[bytes], outlines: dict[int, bytes]
) -> tuple[list[bytes], dict[int, int]]:
    """Consecutive records, which were to be written at `offset`, without the bodies of some.

    `buffers`: the file's header if `offset` is 0, then header and payload of each record.
    `outlines`: of publishes, by offset. Returns the buffers, and where the records that have moved
    were and are.
    """
    # In pairs: before the first record there may be the file's header.
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
