"""Two replicas that are asked beside the traffic, and what may differ between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.model.info import DifferenceKind
from ringmq_node.queue.block import Block
from ringmq_node.queue.run import Run
from ringmq_node.replica.comparing import Digests, compare, digests_of, rest_differs


def answer(
    node: str,
    number: int,
    live: Iterable[Range],
    *,
    next_position: int = 10,
    redelivered: Iterable[Range] = (),
    missing: Iterable[Range] = (),
    odd: int | None = None,
    properties: bytes = b"",
) -> Digests:
    """`odd`: the position with another body than everywhere else."""
    there = RangeSet(live)
    lacking = RangeSet(missing)
    runs = [
        Run(
            position,
            Block.of([b"odd" if position == odd else b"%d" % position], [properties]),
            transient=False,
            redelivered=False,
        )
        for first, last in there
        for position in range(first, last + 1)
        if position not in lacking
    ]
    return Digests(
        node=node,
        epoch=3,
        number=number,
        next_position=next_position,
        first=0,
        last=9,
        live=there,
        redelivered=RangeSet(redelivered),
        transient=RangeSet(),
        missing=lacking,
        digests=digests_of(runs),
        bytes_read=0,
        state_digest="equal",
    )


ALL = [(0, 9)]


def test_equal_replicas_have_no_difference() -> None:
    compared = compare(answer("a", 5, ALL), answer("b", 5, ALL))
    assert (compared.differences, len(compared.unsettled)) == ([], 0)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (answer("b", 5, ALL, odd=4), DifferenceKind.BODY),
        (answer("b", 5, [(0, 3), (5, 9)]), DifferenceKind.STATE),
        (answer("b", 5, ALL, redelivered=[(4, 4)]), DifferenceKind.REDELIVERED),
        (replace(answer("b", 5, ALL), transient=RangeSet([(4, 4)])), DifferenceKind.TRANSIENT),
        (answer("b", 5, ALL, missing=[(4, 4)]), DifferenceKind.MISSING),
    ],
)
def test_each_difference_is_named_with_its_position(other: Digests, kind: DifferenceKind) -> None:
    for one, two in ((answer("a", 5, ALL), other), (other, answer("a", 5, ALL))):
        (found,) = compare(one, two).differences
        assert (found.position, found.kind) == (4, kind)
        assert (found.node, found.other) == (one.node, two.node)
        assert found.has != found.other_has


def test_states_that_differ_otherwise_are_told_if_they_are_of_one_op() -> None:
    here, there = answer("a", 5, ALL), replace(answer("b", 5, ALL), state_digest="other")
    assert compare(here, there).differences == []
    found = rest_differs(here, there)
    assert found is not None
    assert (found.kind, found.position) == (DifferenceKind.REST, 10)
    assert (found.has, found.other_has) == ("equal", "other")
    assert rest_differs(here, here) is None
    # Of another op, or told by a node that doesn't know this yet.
    assert rest_differs(here, replace(there, number=6)) is None
    assert rest_differs(here, replace(there, state_digest="")) is None


def test_other_properties_are_a_difference_of_every_message() -> None:
    found = compare(answer("a", 5, ALL), answer("b", 5, ALL, properties=b"id")).differences
    assert [each.kind for each in found] == [DifferenceKind.PROPERTIES] * 10


def test_a_body_that_both_lack_is_no_difference() -> None:
    lacking = [(4, 4)]
    compared = compare(answer("a", 5, ALL, missing=lacking), answer("b", 5, ALL, missing=lacking))
    assert compared.differences == []


def test_replicas_that_lack_different_bodies_differ_though_all_bodies_are_the_same() -> None:
    here, there = answer("a", 5, ALL, missing=[(4, 4)]), answer("b", 5, ALL, missing=[(6, 6)])
    same = replace(there, digests=here.digests)
    missing = [d for d in compare(here, same).differences if d.kind is DifferenceKind.MISSING]
    assert [each.position for each in missing] == [4, 6]


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        # Acknowledged, published and flagged since.
        (answer("b", 5, ALL), answer("a", 6, [(0, 3), (5, 9)])),
        (answer("b", 5, [(0, 3)], next_position=4), answer("a", 6, [(0, 4)], next_position=5)),
        (answer("b", 5, ALL), answer("a", 6, ALL, redelivered=[(4, 4)])),
    ],
    ids=["gone", "new", "redelivered"],
)
def test_the_one_that_is_behind_is_asked_again_and_then_it_counts(
    behind: Digests, ahead: Digests
) -> None:
    for one, two in ((behind, ahead), (ahead, behind)):
        compared = compare(one, two)
        assert compared.differences == []
        assert compared.unsettled.ranges() == [(4, 4)]
        assert (compared.behind, compared.number) == ("b", 6)
    caught_up = replace(ahead, node="b", number=7)
    assert compare(ahead, caught_up, among=RangeSet([(4, 4)])).differences == []
    for still in (replace(behind, number=6), replace(behind, number=7)):
        (found,) = compare(ahead, still, among=RangeSet([(4, 4)])).differences
        assert found.position == 4


def test_what_the_one_behind_gives_away_after_it_was_asked_again_is_no_difference() -> None:
    """The other, which was ahead, hasn't applied that ack yet."""
    ahead = answer("a", 6, ALL, redelivered=[(4, 4)])
    again = answer("b", 8, [(0, 3), (5, 9)])
    assert compare(ahead, again, among=RangeSet([(4, 4)])).differences == []


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        # The one behind has given away what the other has: positions never come back.
        (answer("b", 5, [(0, 3), (5, 9)]), answer("a", 6, ALL)),
        (answer("b", 5, ALL), answer("a", 6, [(0, 3)], next_position=4)),
        (answer("b", 5, ALL, odd=4), answer("a", 6, ALL)),
        (answer("b", 5, ALL, redelivered=[(4, 4)]), answer("a", 6, ALL)),
    ],
    ids=["came back", "not there yet", "body", "flag taken away"],
)
def test_a_difference_that_no_op_can_make_is_one_at_once(behind: Digests, ahead: Digests) -> None:
    assert compare(behind, ahead).differences[0].position == 4
    assert compare(ahead, behind).differences[0].position == 4
