"""HPACK, by the library `hpack`, with the two ends of it that gRPC makes cheap. Pure.

* What this side sends never enters the peer's table. Then the bytes of a header block depend on
  nothing but the headers, and those of a method's requests, of all answers and of most trailers
  are made once and kept. It costs some hundred bytes for each call, and saves a tenth of a
  millisecond.
* A block that leaves an empty table empty means the same each time. So what such a peer sends (our
  own other end) is read once, too, but for requests with a time-out: no two are alike. Stock
  peers use the table, and are read by the library.

A bomb (a few bytes that stand for megabytes) ends at `list_bytes_max`: see RFC 7541, section 7.3.
"""

from __future__ import annotations

import hpack

from ringmq_wire.codes import ErrorCode
from ringmq_wire.errors import ConnectionFault

Headers = tuple[tuple[bytes, bytes], ...]

# Blocks that are kept, on either side, and the size of the largest.
KEPT_BLOCKS_MAX = 512
KEPT_BLOCK_BYTES_MAX = 1024
# "Dynamic table size update" to 0: the first block begins with it, as RFC 7541, section 4.2 asks of
# an encoder that doesn't use the table.
TABLE_SIZE_0 = b"\x20"


class HeaderEncoder:
    """For one connection."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()
        self._kept: dict[Headers, bytes] = {}
        self._first = TABLE_SIZE_0

    def encode(self, headers: Headers, changing: Headers = ()) -> bytes:
        """One block of both; only the first part is kept."""
        block = self._kept.get(headers)
        if block is None:
            block = self._encode(headers)
            if len(self._kept) >= KEPT_BLOCKS_MAX:
                self._kept.clear()
            if len(block) <= KEPT_BLOCK_BYTES_MAX:
                self._kept[headers] = block
        if changing:
            block += self._encode(changing)
        if self._first:
            block, self._first = self._first + block, b""
        return block

    def _encode(self, headers: Headers) -> bytes:
        return self._encoder.encode(
            # True: never indexed.
            ((name, value, True) for name, value in headers),
            huffman=False,
        )


class HeaderDecoder:
    """For one connection."""

    def __init__(self, list_bytes_max: int) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=list_bytes_max)
        self._kept: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        table = self._decoder.header_table
        repeatable = not table.dynamic_entries
        if repeatable:
            kept = self._kept.get(block)
            if kept is not None:
                return kept
        try:
            headers = tuple((h[0], h[1]) for h in self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except hpack.HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        # A block that begins with a size update (001xxxxx) changes the table's limit.
        resizes = block[:1] and block[0] & 0xE0 == 0x20
        if resizes:
            # While it was smaller, blocks may have left it empty that don't any more.
            self._kept.clear()
        if repeatable and not resizes and not table.dynamic_entries:
            if len(self._kept) >= KEPT_BLOCKS_MAX:
                self._kept.clear()
            if len(block) <= KEPT_BLOCK_BYTES_MAX and _may_come_again(headers):
                self._kept[block] = headers
        return headers


def _may_come_again(headers: Headers) -> bool:
    """Not if they say how much time is left: each call would leave a kilobyte that nobody reads."""
    return not any(name == b"grpc-timeout" for name, _ in headers)
