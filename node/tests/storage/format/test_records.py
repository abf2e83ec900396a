"""A record that is read by itself: its header, and its fault."""

from __future__ import annotations

import random

import pytest

from ringmq_node.storage.format.records import (
    NO_HEADER,
    RECORD_HEADER_BYTES,
    RecordKind,
    parse_record,
    record_header,
)

MARKER, OFFSET = 0x89AB_CDEF, 4096
PAYLOAD = b"payload" * 30
RECORD = record_header(MARKER, OFFSET, RecordKind.MESSAGE, PAYLOAD, number=7) + PAYLOAD


def test_a_record_is_whole_and_nothing_else() -> None:
    header, fault = parse_record(MARKER, OFFSET, RECORD)
    assert header is not None
    assert not fault
    assert (header.length, header.number, header.kind) == (len(PAYLOAD), 7, RecordKind.MESSAGE)


@pytest.mark.parametrize("size", range(len(RECORD)))
def test_a_record_that_is_cut_has_a_fault(size: int) -> None:
    header, fault = parse_record(MARKER, OFFSET, RECORD[:size])
    assert fault
    assert (header is None) == (size < RECORD_HEADER_BYTES) == (fault == NO_HEADER)


def test_a_record_that_is_longer_than_it_says_has_a_fault() -> None:
    """Its reader takes all that is behind the header for its payload."""
    header, fault = parse_record(MARKER, OFFSET, RECORD + b"x")
    assert header is not None
    assert fault == f"is a record with {len(PAYLOAD)} bytes of payload"


def test_a_flipped_bit_anywhere_is_a_fault() -> None:
    draw = random.Random(29)
    for at in range(len(RECORD)):
        data = bytearray(RECORD)
        data[at] ^= 1 << draw.randrange(8)
        _, fault = parse_record(MARKER, OFFSET, bytes(data))
        assert fault, at
    _, fault = parse_record(MARKER, OFFSET + 1, RECORD)
    assert fault == NO_HEADER
