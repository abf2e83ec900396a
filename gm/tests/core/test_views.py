"""Which views may follow which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_gm.core.views import (
    BEGUN_MAX,
    BegunAgain,
    Member,
    MemberId,
    View,
    ViewError,
    first_view,
)

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


def test_a_joiner_that_is_synchronised_leaves_those_before_it_out() -> None:
    """Behind it they might hold an op that it lacks."""
    before = view(*synced(A), joining(B), joining(C), joining(D))
    assert before.with_synced(C) == View(8, (*synced(A, C), joining(D)), 2)


def test_joiners_stay_behind_when_the_ring_is_turned() -> None:
    before = view(*synced(A, B), joining(C))
    assert before.with_master(B) == View(8, (*synced(B, A), joining(C)), 2)


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
    after = view(*synced(A, B, C)).restarted(lives[1], [lives[0], lives[1]], (1, 4))
    assert after.ids == (lives[1], lives[0])
    assert after.synced == after.ids


def test_ring_is_not_restarted_by_a_node_that_was_not_synchronised() -> None:
    with pytest.raises(AssertionError):
        view(*synced(A), joining(B)).restarted(B2, (), (1, 4))


def test_only_candidates_begin_a_ring_again_and_the_others_stay_eligible() -> None:
    a2, c2 = MemberId("a", 2), MemberId("c", 2)
    before = View(7, (*synced(A), joining(D)), 2, (B, C))
    assert before.candidates == (A, B, C)
    assert before.restarted(c2, (), (6, 40)) == View(8, tuple(synced(c2)), 2, (A, B))
    assert before.restarted(c2, [a2], (6, 40)) == View(8, tuple(synced(c2, a2)), 2)
    with pytest.raises(AssertionError):
        before.restarted(D, (), (6, 40))


def test_a_log_that_is_longer_than_the_one_a_ring_was_begun_from_is_told_so() -> None:
    """It is so after any number of views, and after another beginning."""
    a2, c2 = MemberId("a", 2), MemberId("c", 2)
    once = View(3, tuple(synced(A, B)), 1).restarted(a2, (), (3, 40))
    grown = once.with_joiner(c2, ())
    assert grown is not None
    twice = grown.restarted(MemberId("a", 3), (), (4, 50))
    assert twice.begun == (BegunAgain(4, 3, 40), BegunAgain(6, 4, 50))
    assert View.decode(twice.encode()).begun == twice.begun
    for later in (once, grown, twice):
        assert later.overrules(3, 41) == BegunAgain(4, 3, 40)
        assert later.overrules(3, 40) is None
        assert later.overrules(2, 90) is None
    assert once.overrules(4, 60) is None
    assert twice.overrules(4, 60) == BegunAgain(6, 4, 50)
    many = twice
    for _ in range(2 * BEGUN_MAX):
        many = many.restarted(many.master, (), (many.epoch, 1))
    assert len(many.begun) == BEGUN_MAX


def test_whoever_leaves_a_view_that_can_confirm_nothing_stays_eligible() -> None:
    alone = view(*synced(A, B, C)).without({A, B})
    assert alone is not None
    assert alone.eligible == (A, B)
    fewer = view(*synced(A, B, C), min_insync=3).without({C})
    assert fewer is not None
    fewest = fewer.without({A})
    assert fewest is not None
    assert (fewer.eligible, fewest.eligible) == ((C,), (A, C))


def test_whoever_leaves_a_view_that_goes_on_confirming_is_not_eligible() -> None:
    after = view(*synced(A, B, C)).without({A})
    assert after is not None
    assert after.eligible == ()


def test_an_unsynchronised_member_that_leaves_is_not_eligible() -> None:
    after = view(*synced(A, C), joining(B)).without({A, B})
    assert after is not None
    assert (after.ids, after.eligible) == ((C,), (A,))


def test_a_joiner_is_eligible_no_more_in_any_of_its_lives() -> None:
    """It cuts its log."""
    before = View(7, tuple(synced(A)), 2, (B, C))
    after = before.with_joiner(B2, ())
    assert after is not None
    assert after.eligible == (C,)
    assert view(*synced(A, B)).with_joiner(B2, ()) == View(8, (*synced(A), joining(B2)), 2)


def test_nobody_stays_eligible_when_there_is_a_quorum_again() -> None:
    before = View(7, (*synced(A), joining(B2)), 2, (C, D))
    assert before.with_synced(B2).eligible == ()
    too_few = View(7, (*synced(A), joining(B2)), 3, (C, D))
    assert too_few.with_synced(B2).eligible == (C, D)
    assert View(7, tuple(synced(A, B)), 3, (C,)).with_master(B).eligible == (C,)


@pytest.mark.parametrize(
    ("heard", "enough"),
    [
        ({"a": True}, False),
        ({"a": True, "b": True}, True),
        ({"a": True, "b": False}, False),
        ({"a": True, "b": False, "c": False}, True),
        ({"a": False, "b": False, "c": False}, False),
        ({"a": True, "d": True}, False),
    ],
)
def test_how_many_logs_have_to_be_heard_before_a_ring_begins_again(
    heard: dict[str, bool], enough: bool
) -> None:
    assert View(7, tuple(synced(C)), 2, (A, B)).may_begin_again(heard) == enough


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
IDS = st.builds(MemberId, st.text(max_size=8), st.integers(0, 2**40))
VIEWS = st.builds(
    View,
    st.integers(0, 2**60),
    st.lists(MEMBERS, max_size=5).map(lambda each: tuple(sorted(each, key=lambda m: not m.synced))),
    st.integers(1, 5),
    st.lists(IDS, max_size=3).map(tuple),
)


@given(VIEWS)
def test_a_view_comes_back_from_its_bytes_or_is_refused(value: View) -> None:
    nodes = [member_id.node for member_id in value.ids]
    if value.epoch and value.ids and value.members[0].synced and len(nodes) == len(set(nodes)):
        assert View.decode(value.encode()) == value
    else:
        with pytest.raises(ViewError):
            View.decode(value.encode())


FIRST = first_view([A], 1).encode()


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (FIRST, b"[" * 100_000),
        (b'"epoch":1', b'"epoch":"1"'),
        (b'"epoch":1', b'"epoch":true'),
        # No frame takes it: the link would break with it, and with it all other rings.
        (b'"epoch":1', b'"epoch":18446744073709551616'),
        (b'"incarnation":1', b'"incarnation":-1'),
        (b'"min_insync":1', b'"min_insync":0'),
        (b'"synced":true', b'"synced":1'),
        (b'"incarnation":1', b'"incarnation":null'),
        (b'"node":"a"', b'"node":7'),
    ],
    ids=[
        "nested",
        "text",
        "bool",
        "large",
        "negative",
        "no quorum",
        "no bool",
        "no number",
        "no name",
    ],
)
def test_a_view_of_other_types_is_refused(good: bytes, bad: bytes) -> None:
    assert good in FIRST
    with pytest.raises(ViewError):
        View.decode(FIRST.replace(good, bad))


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
        assert not (after.eligible and after.has_quorum)


MISPLACED_JOINER = View(7, (*synced(A), joining(B), *synced(C)), 2).encode()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"members": [1]}', b"null", MISPLACED_JOINER]
)
def test_bytes_that_are_no_view_are_refused(data: bytes) -> None:
    with pytest.raises(ViewError):
        View.decode(data)
