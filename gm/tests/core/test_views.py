"""Which views may follow which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_gm.core.views import Member, MemberId, View, ViewError, first_view

A, B, C, D = (MemberId(node, 1) for node in "abcd")
B2 = MemberId("b", 2)


def view(*members: Member, min_insync: int = 2) -> View:
    return View(7, members, min_insync)


def synced(*ids: MemberId) -> list[Member]:
    return [Member(member_id, synced=True) for member_id in ids]


def joining(member_id: MemberId) -> Member:
    return Member(member_id, synced=False)


def ids_after(before: View, *dead: MemberId) -> tuple[MemberId, ...] | None:
    after = before.without(set(dead))
    return after.ids if after else None


def test_first_view_has_everybody_synchronised() -> None:
    first = first_view([A, B], 2)
    assert (first.epoch, first.master, first.synced) == (1, A, (A, B))


def test_members_that_stay_keep_their_order() -> None:
    assert ids_after(view(*synced(A, B, C, D)), B) == (A, C, D)


def test_first_synchronised_member_downstream_becomes_master() -> None:
    assert ids_after(view(*synced(A, B, C)), A) == (B, C)


def test_unsynchronised_members_before_the_new_master_are_left_out() -> None:
    before = view(*synced(A), joining(B), *synced(C), joining(D))
    assert ids_after(before, A) == (C, D)


def test_no_view_without_a_synchronised_member() -> None:
    assert ids_after(view(*synced(A), joining(B)), A) is None


def test_joiner_comes_last_and_unsynchronised() -> None:
    after = view(*synced(A, B)).with_joiner(C, ())
    assert after is not None
    assert after.members[-1] == joining(C)
    assert after.epoch == 8


def test_joiner_takes_the_place_of_its_earlier_life() -> None:
    after = view(*synced(B, A)).with_joiner(B2, ())
    assert after is not None
    assert after.ids == (A, B2)


def test_ring_that_is_turned_keeps_its_members() -> None:
    after = view(*synced(A, B, C)).with_master(C)
    assert after.ids == (C, A, B)


def test_unsynchronised_member_cannot_be_made_master() -> None:
    with pytest.raises(AssertionError):
        view(*synced(A), joining(B)).with_master(B)


def test_restarted_ring_has_the_longest_log_first() -> None:
    lives = [MemberId(node, 2) for node in "abc"]
    after = view(*synced(A, B, C)).restarted(lives[1], [lives[0], lives[1]])
    assert after.ids == (lives[1], lives[0])
    assert after.synced == after.ids


def test_ring_is_not_restarted_by_a_node_that_was_not_synchronised() -> None:
    with pytest.raises(AssertionError):
        view(*synced(A), joining(B)).restarted(B2, ())


def test_proposer_must_have_reached_every_member() -> None:
    before = view(*synced(A, B, C))
    after = before.without({C})
    assert after is not None
    assert after.may_follow(before, reached={A, B}, lapsed=set())
    assert not after.may_follow(before, reached={A}, lapsed=set())


def test_too_few_may_go_on_only_when_the_leases_of_the_others_have_run_out() -> None:
    before = view(*synced(A, B, C))
    alone = before.without({B, C})
    assert alone is not None
    assert not alone.may_follow(before, reached={A}, lapsed={B})
    assert alone.may_follow(before, reached={A}, lapsed={B, C})


def test_dropping_an_unsynchronised_member_needs_no_majority() -> None:
    before = view(*synced(A), joining(B))
    after = before.without({B})
    assert after is not None
    assert after.may_follow(before, reached={A}, lapsed=set())


MEMBERS = st.builds(
    Member, st.builds(MemberId, st.text(max_size=8), st.integers(0, 2**40)), st.booleans()
)
VIEWS = st.builds(
    View, st.integers(0, 2**60), st.lists(MEMBERS, max_size=5).map(tuple), st.integers(1, 5)
)


@given(VIEWS)
def test_a_view_comes_back_from_its_bytes(value: View) -> None:
    assert View.decode(value.encode()) == value


@given(VIEWS, st.sets(st.integers(0, 4)))
def test_after_any_leaving_the_master_is_synchronised_and_was_a_member(
    before: View, gone: set[int]
) -> None:
    dead = {member.id for index, member in enumerate(before.members) if index in gone}
    after = before.without(dead)
    if after is not None:
        assert after.members[0].synced
        assert set(after.members) <= set(before.members)
        assert not set(after.ids) & dead


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"members": [1]}', b"null"])
def test_bytes_that_are_no_view_are_refused(data: bytes) -> None:
    with pytest.raises(ViewError):
        View.decode(data)
