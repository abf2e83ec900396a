"""Leases on a queue: one reader may read and acknowledge it by positions, for a time. Pure.

A lease has a *name* (its purpose), a *holder* (for people), the *instance* that holds it (random
bytes of one process: two holders may have the same name) and a *token*. Two ingests of one queue
ask for the same lease; the second is refused with the holder's name. A holder that dies is replaced
once its time is over.

A lease is granted where the op is applied, on every replica alike, and not by the master before it
sends the op:

1. A asks. The ring refuses ops for a moment, so A's op is held. The state says "free".
2. B asks. The state still says "free".

Decided by the state as it was when they asked, both would hold the lease. Time comes with the op,
by its master's clock. A new master's clock may differ, so that a lease ends earlier or later than
its holder thinks. That is what the token is for: it is the number of the op that granted the lease,
so each later grant has a higher one, and calls of an earlier holder are refused.

Invariants (`check`): each lease is kept under its own name, there are at most `LEASES_MAX`, and no
two of them have the same token.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from ringmq_base.values import value

# Of one queue. An expired lease makes room.
LEASES_MAX: Final = 16
# The name and the holder, as UTF-8, and the instance.
LEASE_TEXT_BYTES_MAX: Final = 255
INSTANCE_BYTES_MAX: Final = 64
TTL_MS_MIN: Final = 100
TTL_MS_MAX: Final = 24 * 3600 * 1000

# Of the op: kind, action, size of the name u16, size of the holder u16, size of the instance u16,
# token, time to live, time; then name, holder and instance.
_CHANGE: Final = struct.Struct("<BBHHHQQQ")
# Of a lease in a checkpoint: token, time to live, end; the three sizes; then the three.
_LEASE: Final = struct.Struct("<QQQHHH")


class LeaseError(ValueError):
    """These bytes are neither a lease nor a change of one."""


class LeaseAction(IntEnum):
    ACQUIRE = 1
    RENEW = 2
    RELEASE = 3


@value
class QueueLease:
    """Times in milliseconds; `until_ms` since 1970."""

    name: str
    holder: str
    instance: bytes
    token: int
    ttl_ms: int
    until_ms: int


@value
class ChangeLease:
    """`ACQUIRE` names holder and instance; `RENEW` and `RELEASE` the token. `at_ms`: when, in
    milliseconds since 1970, by the master's clock."""

    action: LeaseAction
    name: str
    at_ms: int
    holder: str = ""
    instance: bytes = b""
    token: int = 0
    ttl_ms: int = 0


def change(leases: dict[str, QueueLease], number: int, op: ChangeLease) -> None:
    """Applies the op, which has this number. A change that isn't allowed changes nothing."""
    held = leases.get(op.name)
    match op.action:
        case LeaseAction.ACQUIRE:
            _acquire(leases, held, number, op)
        case LeaseAction.RENEW:
            # Also after its time, as long as nobody else has asked for it.
            if held is not None and held.token == op.token:
                leases[op.name] = _prolonged(held, op)
        case LeaseAction.RELEASE:
            if held is not None and held.token == op.token:
                del leases[op.name]


def _acquire(
    leases: dict[str, QueueLease], held: QueueLease | None, number: int, op: ChangeLease
) -> None:
    if held is not None and held.until_ms > op.at_ms:
        if held.instance == op.instance:
            # The answer to its first question was lost. It must not fence itself.
            leases[op.name] = _prolonged(held, op)
        return
    if held is None and len(leases) >= LEASES_MAX:
        for name in [name for name, each in leases.items() if each.until_ms <= op.at_ms]:
            del leases[name]
        if len(leases) >= LEASES_MAX:
            return
    until_ms = op.at_ms + op.ttl_ms
    leases[op.name] = QueueLease(op.name, op.holder, op.instance, number, op.ttl_ms, until_ms)


def _prolonged(held: QueueLease, op: ChangeLease) -> QueueLease:
    # Never shortened: a master whose clock is behind takes no granted time back.
    until_ms = max(held.until_ms, op.at_ms + op.ttl_ms)
    return QueueLease(held.name, held.holder, held.instance, held.token, op.ttl_ms, until_ms)


def check(leases: dict[str, QueueLease]) -> None:
    """Asserts the invariants."""
    assert len(leases) <= LEASES_MAX
    assert all(name == lease.name for name, lease in leases.items())
    assert len({lease.token for lease in leases.values()}) == len(leases)


# --- as bytes ---


def encode_change(kind: int, op: ChangeLease) -> bytes:
    """The op; `kind` is its number among the ops of a queue."""
    name, holder = op.name.encode(), op.holder.encode()
    assert max(len(name), len(holder)) <= LEASE_TEXT_BYTES_MAX
    assert len(op.instance) <= INSTANCE_BYTES_MAX
    head = _CHANGE.pack(
        kind,
        op.action,
        len(name),
        len(holder),
        len(op.instance),
        op.token,
        op.ttl_ms,
        op.at_ms,
    )
    return head + name + holder + op.instance


def decode_change(payload: bytes) -> ChangeLease:
    """Raises `LeaseError`."""
    if len(payload) < _CHANGE.size:
        raise LeaseError(f"lease op of {len(payload)} bytes is shorter than its header")
    _, action, *sizes, token, ttl_ms, at_ms = _CHANGE.unpack_from(payload)
    name, holder, instance, end = _texts(payload, _CHANGE.size, *sizes)
    if end != len(payload):
        raise LeaseError(f"lease op of {len(payload)} bytes, by its sizes {end}")
    if action not in LeaseAction.__members__.values():
        raise LeaseError(f"lease op with the unknown action {action}")
    return ChangeLease(LeaseAction(action), name, at_ms, holder, instance, token, ttl_ms)


def encode_leases(leases: Iterable[QueueLease]) -> bytes:
    """One after another, as a checkpoint has them."""
    pieces: list[bytes] = []
    for lease in leases:
        name, holder = lease.name.encode(), lease.holder.encode()
        sizes = len(name), len(holder), len(lease.instance)
        pieces.append(_LEASE.pack(lease.token, lease.ttl_ms, lease.until_ms, *sizes))
        pieces += (name, holder, lease.instance)
    return b"".join(pieces)


def decode_leases(payload: bytes, offset: int, count: int) -> tuple[dict[str, QueueLease], int]:
    """`count` leases that begin at `offset`, and where they end. Raises `LeaseError`."""
    leases: dict[str, QueueLease] = {}
    for _ in range(count):
        if offset + _LEASE.size > len(payload):
            raise LeaseError(f"a lease at byte {offset} of {len(payload)}")
        token, ttl_ms, until_ms, *sizes = _LEASE.unpack_from(payload, offset)
        name, holder, instance, offset = _texts(payload, offset + _LEASE.size, *sizes)
        leases[name] = QueueLease(name, holder, instance, token, ttl_ms, until_ms)
    if len(leases) != count:
        raise LeaseError(f"{count} leases with {len(leases)} names")
    return leases, offset


def _texts(
    payload: bytes, at: int, name_size: int, holder_size: int, instance_size: int
) -> tuple[str, str, bytes, int]:
    """Name, holder and instance, and where they end."""
    if max(name_size, holder_size) > LEASE_TEXT_BYTES_MAX or instance_size > INSTANCE_BYTES_MAX:
        raise LeaseError(f"a lease with texts of {name_size}, {holder_size}, {instance_size} bytes")
    holder_at = at + name_size
    instance_at = holder_at + holder_size
    end = instance_at + instance_size
    if end > len(payload):
        raise LeaseError(f"a lease of {len(payload)} bytes, by its sizes {end}")
    try:
        name, holder = payload[at:holder_at].decode(), payload[holder_at:instance_at].decode()
    except UnicodeDecodeError as error:
        raise LeaseError(f"a lease whose texts aren't UTF-8: {error}") from error
    return name, holder, payload[instance_at:end], end
