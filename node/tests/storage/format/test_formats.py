"""Each format has its own magic and version, and refuses a version that it doesn't know.

Magics and versions are written out here by hand: nobody changes them by changing a constant.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from ringmq_node.storage import UnsupportedFormatError
from ringmq_node.storage.format.formats import (
    COMMIT_LOG,
    FORMATS,
    JOURNAL,
    MESSAGE_FILE,
    QUEUE_LABEL,
    QUEUE_LEFTOVER,
    QUEUE_NAME,
    QUEUE_PARTIAL,
    RELOCATION_MAP,
    SEGMENT,
    SET_ASIDE,
    STORE_LIFE,
    STORE_META,
    Format,
)
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import file_header
from ringmq_node.storage.format.texts import decode_texts, encode_texts
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.data_file import parse_file_header
from ringmq_node.storage.messages.relocation import Table

MAGICS = {
    JOURNAL: b"RINGMQ-J",
    SEGMENT: b"RINGMQ-S",
    MESSAGE_FILE: b"RINGMQ-B",
    RELOCATION_MAP: b"RINGMQ-R",
    STORE_META: b"RINGMQ-M",
    STORE_LIFE: b"RINGMQ-I",
    QUEUE_NAME: b"RINGMQ-N",
    QUEUE_LABEL: b"RINGMQ-L",
    QUEUE_PARTIAL: b"RINGMQ-P",
    QUEUE_LEFTOVER: b"RINGMQ-O",
    SET_ASIDE: b"RINGMQ-A",
    COMMIT_LOG: b"RINGMQ-C",
}
# All others have version 1.
VERSIONS = {JOURNAL: 4, COMMIT_LOG: 2}
MARKER = 0x01020304


def version_of(format: Format) -> int:
    return VERSIONS.get(format, 1)


def bytes_of_version(format: Format) -> bytes:
    return bytes([version_of(format), 0])


def of_records(format: Format) -> bytes:
    return file_header(format, MARKER, 5)


def of_texts(format: Format) -> bytes:
    return encode_texts(format, "one", "two" if format in (STORE_META, STORE_LIFE) else "")


def of_map(format: Format) -> bytes:
    return relocation.encode(5, Table(*(array("I") for _ in range(4))))


ENCODERS: dict[Format, Callable[[Format], bytes]] = {
    JOURNAL: of_records,
    SEGMENT: of_records,
    MESSAGE_FILE: of_records,
    RELOCATION_MAP: of_map,
    STORE_META: of_texts,
    STORE_LIFE: of_texts,
    QUEUE_NAME: of_texts,
    QUEUE_LABEL: of_texts,
    QUEUE_PARTIAL: of_texts,
    QUEUE_LEFTOVER: of_texts,
    SET_ASIDE: of_records,
    COMMIT_LOG: of_records,
}


def read(format: Format, file: str, data: bytes) -> object:
    """Reads the header of a file as the store does."""
    if format in (JOURNAL, SEGMENT, SET_ASIDE, COMMIT_LOG):
        records = RecordFile(file, format, len(data), lambda at, size: data[at : at + size])
        return records.number
    if format is MESSAGE_FILE:
        return parse_file_header(file, data)
    if format is RELOCATION_MAP:
        return relocation.decode(file, 5, data)
    return decode_texts(format, Path(file), data)


def of_version(format: Format, version: int) -> bytes:
    """A file that is whole, its checksum included, but for its version."""
    data = bytearray(ENCODERS[format](format))
    struct.pack_into("<H", data, 8, version)
    if ENCODERS[format] is of_texts:
        struct.pack_into("<I", data, 14, zlib.crc32(data[18:], zlib.crc32(data[:14])))
    else:
        struct.pack_into("<I", data, 24, zlib.crc32(data[:24]))
    return bytes(data)


def test_every_format_is_in_the_table() -> None:
    assert [*MAGICS] == [*FORMATS]
    assert [format.version for format in FORMATS] == [*map(version_of, FORMATS)]
    assert [format.magic for format in FORMATS] == [*MAGICS.values()]
    assert len({format.name for format in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_file_begins_with_its_magic_and_version(format: Format) -> None:
    data = ENCODERS[format](format)
    assert data[:10] == MAGICS[format] + bytes_of_version(format)
    assert read(format, "a file", data) is not None


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("version", [0, 99, 0xFFFF])
def test_an_unknown_version_is_refused_by_name(format: Format, version: int) -> None:
    with pytest.raises(UnsupportedFormatError) as refused:
        read(format, "/data/a file", of_version(format, version))
    error = refused.value
    assert (error.format_name, error.found, error.supported) == (
        format.name,
        version,
        version_of(format),
    )
    assert error.file == "/data/a file"
    assert str(error) == (
        f"/data/a file: format {format.name!r} has version {version}, this RingMQ supports "
        f"version {version_of(format)}: open the directory with the RingMQ that wrote it"
    )


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_version_of_another_format_changes_nothing(format: Format) -> None:
    """Raising one version leaves the bytes of all the other formats as they were."""
    raised = Format(format.name, format.magic, 99)
    for other in FORMATS:
        assert ENCODERS[other](other)[8:10] == bytes_of_version(other)
    if ENCODERS[format] is not of_map:
        assert ENCODERS[format](raised)[8:10] == b"\x63\x00"


TEXTS = [format for format, encode in ENCODERS.items() if encode is of_texts]


@pytest.mark.parametrize("format", TEXTS, ids=lambda format: format.name)
def test_a_flipped_bit_in_the_version_is_damage(format: Format) -> None:
    data = bytearray(ENCODERS[format](format))
    data[8] ^= 2
    assert decode_texts(format, Path("a file"), bytes(data)) is None
