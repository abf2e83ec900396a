"""The checks of every engine before it does anything, so that all refuse the same calls."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from ringmq_gm.registry.base import (
    COMMIT_BYTES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Guard,
    LimitError,
    Operation,
    Put,
    Session,
)

log = logging.getLogger(__name__)

TTL_S_MIN = 0.1
TTL_S_MAX = 24 * 3600.0


def key_bytes(key: str) -> bytes:
    """The UTF-8 of a valid key. Its order is that of the text."""
    if not key:
        raise LimitError("a key is not empty")
    return prefix_bytes(key)


def prefix_bytes(prefix: str) -> bytes:
    """The UTF-8 of a prefix, which may be empty."""
    try:
        encoded = prefix.encode()
    except UnicodeEncodeError as error:
        raise LimitError(f"key {prefix!r} is not valid Unicode") from error
    if len(encoded) > KEY_BYTES_MAX:
        raise LimitError(f"key of {len(encoded)} bytes, at most {KEY_BYTES_MAX} are allowed")
    return encoded


def key_text(key: bytes) -> str | None:
    """The text of a key that was found; None if it isn't UTF-8.

    Nobody here writes such a key, but whatever can write to the registry can. It is passed over: it
    must not stop who reads the keys beside it.
    """
    try:
        return key.decode()
    except UnicodeDecodeError:
        log.warning("registry key %r is not UTF-8: passed over", key)
        return None


def prefix_end(prefix: bytes) -> bytes:
    """The first byte string that is above all UTF-8 strings which begin with `prefix`."""
    # UTF-8 has no byte 0xff: the last one can always be counted up.
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


def check_read(keys: Sequence[str]) -> list[bytes]:
    """The UTF-8 of the keys of one `read`, each once, in their order."""
    if len(keys) > OPERATIONS_MAX:
        raise LimitError(f"read of {len(keys)} keys, at most {OPERATIONS_MAX} are allowed")
    return sorted(set(map(key_bytes, keys)))


def check_commit(
    guards: Sequence[Guard], operations: Sequence[Operation], session: Session | None
) -> None:
    """Raises `LimitError` if no engine could carry this commit out."""
    if max(len(guards), len(operations)) > OPERATIONS_MAX:
        raise LimitError(
            f"commit of {len(guards)} guards and {len(operations)} operations,"
            f" at most {OPERATIONS_MAX} of each are allowed"
        )
    total = sum(len(key_bytes(guard.key)) for guard in guards)
    written: set[str] = set()
    for operation in operations:
        if operation.key in written:
            raise LimitError(f"commit writes key {operation.key!r} twice")
        written.add(operation.key)
        total += len(key_bytes(operation.key))
        if isinstance(operation, Put):
            size = len(operation.value)
            total += size
            if size > VALUE_BYTES_MAX:
                raise LimitError(
                    f"value of {size} bytes for key {operation.key!r},"
                    f" at most {VALUE_BYTES_MAX} are allowed"
                )
            if operation.leased and session is None:
                raise LimitError(f"leased put of key {operation.key!r} without a session")
    if total > COMMIT_BYTES_MAX:
        raise LimitError(f"commit of {total} bytes, at most {COMMIT_BYTES_MAX} are allowed")


def check_ttl(ttl_s: float) -> None:
    """Raises `LimitError` unless a lease can last for `ttl_s`."""
    if not (math.isfinite(ttl_s) and TTL_S_MIN <= ttl_s <= TTL_S_MAX):
        raise LimitError(f"lease of {ttl_s} s, allowed are {TTL_S_MIN} to {TTL_S_MAX:.0f} s")
