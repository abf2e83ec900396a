"""Which messages `bench properties` sends, and how it sets the kinds beside each other."""

from __future__ import annotations

import io

from bench import properties
from bench.properties import KINDS, Measured
from rich.console import Console


def test_the_kinds_differ_in_what_messages_have_in_common() -> None:
    made = {kind: [make(number) for number in range(3)] for kind, make in KINDS.items()}
    assert made["none"] == [None] * 3
    assert made["shared"][0] is made["shared"][2]
    for kind in ("own", "headers"):
        assert len({each.message_id for each in made[kind] if each is not None}) == 3
    assert [bool(each and each.headers) for each in made["own"] + made["headers"]] == [
        *[False] * 3,
        *[True] * 3,
    ]


def test_a_short_run_is_one_round_unless_more_is_asked_for() -> None:
    short, plain = properties.parse(["--short"]), properties.parse([])
    assert (short.rounds, short.count) == (1, properties.SHORT_COUNT)
    assert (plain.rounds, plain.count) == (properties.ROUNDS, properties.COUNT)
    assert properties.parse(["--short", "--count", "7"]).count == 7


def test_a_row_has_the_median_of_its_kind_and_nodes() -> None:
    measured = [
        Measured(nodes_of, kind, does, number, 1000.0 * number, 10.0 * number, number)
        for number in (3, 1, 2)
        for nodes_of in ("this tree", "the other")
        for kind in KINDS
        for does in ("publish", "consume")
    ]
    shown = io.StringIO()
    Console(file=shown, width=120).print(properties.table(measured, 7))
    lines = shown.getvalue().splitlines()
    rows = [line.split() for line in lines if line.strip().startswith(("publish", "consume"))]
    assert len(rows) == 2 * 2 * len(KINDS)
    assert all(row[-3:] == ["2000", "20.0", "2.0"] for row in rows)
    assert [row[0] for row in rows] == ["publish,"] * 8 + ["consume,"] * 8
