"""Typed values on the command line: what is shown is what the option takes."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq import HeaderValue, OtherValue
from ringmq_node.cli.fields import FieldType, field_json, field_text

JSON_VALUES: st.SearchStrategy[HeaderValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.just("k"), values),
    max_leaves=4,
)


@given(st.sampled_from(["n", "x-match", "a b", "end:", "ü'"]), JSON_VALUES)
def test_what_is_shown_can_be_pasted(name: str, value: HeaderValue) -> None:
    shown = field_text(name, value)
    assert "\n" not in shown
    assert "\t" not in shown
    [pasted] = shlex.split(shown)
    read = FieldType().convert(pasted, None, None)
    assert read == (name, value)
    assert type(read[1]) is type(value)


def test_a_number_is_not_shown_as_its_text() -> None:
    shown = [field_text("n", value) for value in (5, "5", 5.0, True, "true", None, "a b")]
    assert shown == ["n:=5", "n=5", "n:=5.0", "n:=true", "n=true", "n", "'n=a b'"]


@pytest.mark.parametrize(
    ("value", "said", "as_json"),
    [
        (b"hi", "bytes(6869)", "6869"),
        (
            datetime(2026, 11, 28, tzinfo=UTC),
            "time(2026-11-28T00:00:00+00:00)",
            "2026-11-28T00:00:00+00:00",
        ),
        (OtherValue("amqp:D", b"\x01"), "other(amqp:D:01)", "amqp:D:01"),
        ([1, {"k": b"hi"}], "other([1, {k=6869}])", [1, {"k": "6869"}]),
    ],
)
def test_a_value_that_json_has_not_is_told_from_a_text_and_not_taken(
    value: HeaderValue, said: str, as_json: object
) -> None:
    [shown] = shlex.split(field_text("n", value))
    assert shown == f"n:={said}"
    assert field_json(value) == as_json
    with pytest.raises(click.BadParameter, match="is no JSON"):
        FieldType().convert(shown, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n:=18446744073709551616", "header 'n': Value out of range"),
        ("n:=" + "[" * 100_000, "n: "),
    ],
)
def test_json_that_no_header_can_have_is_refused(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        FieldType().convert(text, None, None)
