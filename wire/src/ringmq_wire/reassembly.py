"""The messages in the bytes of one stream, however they are cut into frames. Pure.

The size of a message is checked on its prefix, before a byte of it is kept. A message that lies
whole in one piece of input is copied once; of any other, the pieces are kept, and joined once.
"""

from __future__ import annotations

from ringmq_wire.codes import Code, RpcStatus
from ringmq_wire.errors import CallRefusal
from ringmq_wire.frames import MESSAGE_PREFIX, MESSAGE_PREFIX_BYTES

# Pieces of one message; beyond, they are joined early: a peer that sends a byte at a time would
# have an object made for each.
PIECES_MAX = 1024
# Of an object for each piece, beside its bytes.
PIECE_OVERHEAD_BYTES = 64


class Reassembly:
    """For one direction of one stream."""

    __slots__ = ("_have", "_pieces", "bytes_max", "compressed_code", "need", "prefix")

    def __init__(self, bytes_max: int, compressed_code: Code) -> None:
        self.bytes_max = bytes_max
        # The status that a compressed message gets. gRPC wants another one from each side.
        self.compressed_code = compressed_code
        # The first bytes of a prefix, or the pieces of a message's content: never both. Both this
        # and `need` are looked at for each frame from outside (`Inflow`): no calls for that.
        self.prefix = b""
        self._pieces: list[bytes] = []
        self._have = 0
        # The size of the content that has begun; -1: none has.
        self.need = -1

    @property
    def held_bytes(self) -> int:
        """The bytes of a message that isn't whole yet, its prefix included."""
        if self.need < 0:
            return len(self.prefix)
        return MESSAGE_PREFIX_BYTES + self._have

    @property
    def kept_bytes(self) -> int:
        """The memory that these take: pieces of one byte cost far more than their bytes."""
        if self.need < 0:
            return len(self.prefix)
        return self._have + PIECE_OVERHEAD_BYTES * len(self._pieces)

    @property
    def lacking_bytes(self) -> int:
        """So many bytes at least make it whole; 0 between two messages."""
        if self.need < 0:
            return MESSAGE_PREFIX_BYTES - len(self.prefix) if self.prefix else 0
        return self.need - self._have

    @property
    def message_bytes(self) -> int:
        """The size of the message that isn't whole yet, with its prefix; 0 if it isn't known."""
        return MESSAGE_PREFIX_BYTES + self.need if self.need >= 0 else 0

    def feed(self, data: bytes, at: int, end: int, into: list[bytes]) -> None:
        """Takes `data[at:end]`, and appends the messages that became whole.

        Raises `CallRefusal` at a message that isn't taken; those before it are in `into`.
        """
        if self.need >= 0 or self.prefix:
            at = self._go_on(data, at, end, into)
        unpack = MESSAGE_PREFIX.unpack_from
        bytes_max = self.bytes_max
        append = into.append
        # The loop that every small message goes through: nothing is called but `unpack`.
        while end - at >= 5:
            compressed, size = unpack(data, at)
            if compressed or size > bytes_max:
                self._refuse(compressed, size)
            at += 5
            stop = at + size
            if stop > end:
                self.need = size
                self._have = end - at
                self._pieces.append(data[at:end])
                return
            append(data[at:stop])
            at = stop
        if at < end:
            self.prefix = data[at:end]

    def _go_on(self, data: bytes, at: int, end: int, into: list[bytes]) -> int:
        """The rest of what has begun; returns where the next message starts."""
        if self.need < 0:
            lacking = MESSAGE_PREFIX_BYTES - len(self.prefix)
            self.prefix += data[at : min(end, at + lacking)]
            at = min(end, at + lacking)
            if len(self.prefix) < MESSAGE_PREFIX_BYTES:
                return at
            compressed, size = MESSAGE_PREFIX.unpack(self.prefix)
            if compressed or size > self.bytes_max:
                self._refuse(compressed, size)
            self.prefix = b""
            self.need, self._have = size, 0
        stop = min(end, at + self.need - self._have)
        if stop > at:
            self._pieces.append(data[at:stop])
            self._have += stop - at
        if self._have == self.need:
            into.append(b"".join(self._pieces))
            self.clear()
        elif len(self._pieces) >= PIECES_MAX:
            self._pieces = [b"".join(self._pieces)]
        return stop

    def clear(self) -> None:
        self._pieces.clear()
        self.prefix = b""
        self._have = 0
        self.need = -1

    def _refuse(self, compressed: int, size: int) -> None:
        self.clear()
        if compressed:
            raise CallRefusal(
                RpcStatus(self.compressed_code, "messages can't be compressed here: only identity")
            )
        raise CallRefusal(
            RpcStatus(
                Code.RESOURCE_EXHAUSTED,
                f"message of {size} bytes, at most {self.bytes_max} are allowed",
            )
        )
