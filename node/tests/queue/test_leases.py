"""Leases: granted, refused, renewed, taken over and released, the same on every replica."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.queue import leases
from ringmq_node.queue.block import Block
from ringmq_node.queue.leases import (
    LEASE_TEXT_BYTES_MAX,
    LEASES_MAX,
    ChangeLease,
    LeaseAction,
    LeaseError,
    QueueLease,
)
from ringmq_node.queue.ops import NoteGone, Publish
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint, CheckpointError

TTL_MS = 1000


class Leases:
    """The leases of one queue; each op gets the next number."""

    def __init__(self) -> None:
        self.all: dict[str, QueueLease] = {}
        self.number = 0

    def acquire(self, holder: str, at_ms: int, name: str = "ingest") -> int:
        """The token; 0 if somebody else has the lease."""
        op = ChangeLease(LeaseAction.ACQUIRE, name, at_ms, holder, holder.encode(), 0, TTL_MS)
        self.do(op)
        lease = self.all.get(name)
        return lease.token if lease is not None and lease.holder == holder else 0

    def renew(self, token: int, at_ms: int) -> bool:
        self.do(ChangeLease(LeaseAction.RENEW, "ingest", at_ms, token=token, ttl_ms=TTL_MS))
        lease = self.all.get("ingest")
        return lease is not None and lease.token == token and lease.until_ms >= at_ms + TTL_MS

    def release(self, token: int) -> None:
        self.do(ChangeLease(LeaseAction.RELEASE, "ingest", 0, token=token))

    def do(self, op: ChangeLease) -> None:
        self.number += 1
        leases.change(self.all, self.number, op)
        leases.check(self.all)


def test_the_second_is_refused_until_the_first_has_released() -> None:
    held = Leases()
    first = held.acquire("one", 0)
    assert first
    assert not held.acquire("two", TTL_MS - 1)
    assert held.all["ingest"].holder == "one"
    held.release(first)
    assert held.acquire("two", TTL_MS - 1) > first


def test_a_repeated_question_of_one_instance_has_the_same_answer() -> None:
    held = Leases()
    token = held.acquire("one", 0)
    assert held.acquire("one", 5) == token
    assert held.all["ingest"].until_ms == 5 + TTL_MS


def test_whose_time_is_over_is_replaced_and_fenced() -> None:
    held = Leases()
    first = held.acquire("one", 0)
    second = held.acquire("two", TTL_MS)
    assert second > first
    until_ms = held.all["ingest"].until_ms
    assert not held.renew(first, TTL_MS + 1)
    held.release(first)
    assert held.all["ingest"].token == second
    assert held.all["ingest"].until_ms == until_ms


def test_a_late_renewal_holds_while_nobody_has_asked() -> None:
    held = Leases()
    token = held.acquire("one", 0)
    assert held.renew(token, 10 * TTL_MS)
    assert not held.acquire("two", 10 * TTL_MS + 1)


def test_a_master_whose_clock_is_behind_takes_nothing_back() -> None:
    held = Leases()
    token = held.acquire("one", 5000)
    held.renew(token, 10)
    assert held.all["ingest"].until_ms == 5000 + TTL_MS


def test_there_are_only_so_many_and_expired_ones_make_room() -> None:
    held = Leases()
    for index in range(LEASES_MAX):
        assert held.acquire("one", index, f"lease {index}")
    assert not held.acquire("one", 100)
    assert held.acquire("one", TTL_MS + 3)
    assert "lease 3" not in held.all
    assert "lease 4" in held.all


CHANGES = st.lists(
    st.builds(
        ChangeLease,
        st.sampled_from(LeaseAction),
        st.sampled_from(["a", "b"]),
        st.integers(0, 5000),
        st.sampled_from(["one", "two"]),
        st.sampled_from([b"1", b"2"]),
        st.integers(0, 12),
        st.integers(1, TTL_MS),
    ),
    max_size=12,
)


@given(CHANGES)
def test_one_holder_at_a_time_and_tokens_that_rise(changes: list[ChangeLease]) -> None:
    held: dict[str, QueueLease] = {}
    newest: dict[str, int] = {}
    for number, op in enumerate(changes, 1):
        before = held.get(op.name)
        leases.change(held, number, op)
        leases.check(held)
        after = held.get(op.name)
        if after is not None and (before is None or after.token != before.token):
            assert after.token == number > newest.get(op.name, 0)
            assert before is None or before.until_ms <= op.at_ms
            newest[op.name] = number
        if op.action is not LeaseAction.ACQUIRE and (before is None or before.token != op.token):
            assert after == before
        if after is None and before is not None:
            assert op.action is LeaseAction.RELEASE
            assert op.token == before.token
        data = b"before" + leases.encode_leases(held.values())
        assert leases.decode_leases(data, 6, len(held)) == (held, len(data))


@given(st.binary(max_size=90))
def test_other_bytes_are_refused(data: bytes) -> None:
    for decode in (leases.decode_change, lambda data: leases.decode_leases(data, 0, 1)):
        with suppress(LeaseError):
            decode(data)


def test_a_cut_lease_is_refused_at_every_byte() -> None:
    op = ChangeLease(LeaseAction.ACQUIRE, "näme", 7, "holder", b"instance", 3, 9)
    data = leases.encode_change(21, op)
    assert leases.decode_change(data) == op
    for end in range(len(data)):
        with pytest.raises(LeaseError):
            leases.decode_change(data[:end])
    lease = QueueLease("n" * LEASE_TEXT_BYTES_MAX, "h", b"i", 1, 2, 3)
    data = leases.encode_leases([lease])
    for end in range(len(data)):
        with pytest.raises(LeaseError):
            leases.decode_leases(data[:end], 0, 1)


def test_a_state_keeps_them_in_its_checkpoint_and_its_copy() -> None:
    state = ReplicatedState()
    state.apply(1, Publish(0, Block.of([b"x"] * 9)))
    size = len(checkpoint.encode(Checkpoint(1, state)))
    state.apply(2, NoteGone(acked_end=3))
    state.apply(3, NoteGone(purged_end=5))
    # A replica that has lost a part of its log: no position beyond its own.
    state.apply(4, NoteGone(acked_end=77))
    assert (state.acked_end, state.purged_end) == (9, 5)
    assert len(checkpoint.encode(Checkpoint(1, state))) == size
    for number, name in enumerate(("b", "a"), 5):
        op = ChangeLease(LeaseAction.ACQUIRE, name, 10, "holder", b"i", 0, 20)
        state.apply(number, op)
    state.check()
    again = checkpoint.decode(checkpoint.encode(Checkpoint(1, state))).state
    assert again.is_same(state)
    assert again.digest() == state.digest() == state.copy().digest()
    data = checkpoint.encode(Checkpoint(1, state))
    for end in range(len(data)):
        with pytest.raises(CheckpointError):
            checkpoint.decode(data[:end])
