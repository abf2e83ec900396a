"""Small files of one or two texts: `store.meta`, `store.life`, `queue.name`, and others.

    magic      8 bytes   by format: see `formats`
    version    u16       by format
    sizes      u16 x 2   of the two texts, in bytes; the second is 0 if there is only one
    crc        u32       of all the other bytes
    texts      UTF-8     store.meta: cluster id, node | store.life: identity, incarnation
                         queue.name: name | queue.label: label | queue.partial: the reason
                         queue.leftover: when it was found, in seconds since 1970

Little endian.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from isal.isal_zlib import crc32

from ringmq_node.storage.format.formats import Format

_HEAD: Final = struct.Struct("<8sHHHI")
# The bytes of the head before the checksum.
_SUMMED_BYTES: Final = 14


def encode_texts(format: Format, first: str, second: str = "") -> bytes:
    texts = (first.encode(), second.encode())
    sizes = (len(texts[0]), len(texts[1]))
    body = b"".join(texts)
    head = _HEAD.pack(format.magic, format.version, *sizes, 0)[:_SUMMED_BYTES]
    crc = crc32(body, crc32(head))
    return _HEAD.pack(format.magic, format.version, *sizes, crc) + body


def decode_texts(format: Format, file: Path, data: bytes) -> tuple[str, str] | None:
    """The two texts; None if the bytes are damaged. Raises `UnsupportedFormatError`."""
    if len(data) < _HEAD.size:
        return None
    found, version, first, second, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if found != format.magic or crc != crc32(body, crc32(data[:_SUMMED_BYTES])):
        return None
    # After the checksum: a flipped bit in the version is damage, not another version.
    format.check_version(file, version)
    if len(body) != first + second:
        return None
    return body[:first].decode(), body[first:].decode()
