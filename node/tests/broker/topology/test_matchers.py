"""Each type of exchange, beside a naive matcher that looks at every binding."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmq_node.broker.topology.matchers import matcher_for, words_of
from ringmq_node.model.fields import Headers, fields_of
from ringmq_node.model.topology import BindingRecord, ExchangeKind, sorted_arguments


def binding(
    queue: str, key: str = "", arguments: Mapping[str, object] | None = None
) -> BindingRecord:
    fields = sorted_arguments(fields_of(arguments or {}))
    return BindingRecord("x", "x1", queue, queue, False, key, fields)


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    """By the definition, letter by letter."""
    match pattern:
        case []:
            return not words
        case ["#", *rest]:
            return any(topic_matches(rest, words[n:]) for n in range(len(words) + 1))
        case ["*", *rest]:
            return bool(words) and topic_matches(rest, words[1:])
        case [word, *rest]:
            return words[:1] == [word] and topic_matches(rest, words[1:])
    raise AssertionError(pattern)


def headers_match(arguments: Headers, headers: Headers) -> bool:
    how = str(arguments["x-match"].value) if "x-match" in arguments else "all"
    asked = [
        name in headers and (value.kind == "void" or value == headers[name])
        for name, value in arguments.items()
        if name != "x-match" and (how.endswith("with-x") or not name.startswith("x-"))
    ]
    return all(asked) if how.startswith("all") else any(asked)


def naively(kind: ExchangeKind, each: BindingRecord, key: str, headers: Headers) -> bool:
    match kind:
        case ExchangeKind.DIRECT:
            return each.routing_key == key
        case ExchangeKind.FANOUT:
            return True
        case ExchangeKind.TOPIC:
            return topic_matches(words_of(each.routing_key), words_of(key))
        case ExchangeKind.HEADERS:
            return headers_match(dict(each.arguments), headers)


WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)
# All that Python takes for equal, and a headers exchange doesn't.
VALUES = st.sampled_from(["1", "2", 1, 1.0, True, b"1", None, [1], {"a": 1}])
HEADERS = st.dictionaries(st.sampled_from(["h", "i", "x-h"]), VALUES).map(fields_of)
ARGUMENTS = st.builds(
    lambda wanted, how: wanted | ({"x-match": how} if how else {}),
    st.dictionaries(st.sampled_from(["h", "i", "x-h"]), VALUES),
    st.sampled_from(["", "all", "any", "all-with-x", "any-with-x"]),
)
BINDINGS = st.lists(
    st.builds(binding, st.sampled_from("pqrs"), WORDS, ARGUMENTS),
    max_size=12,
    unique_by=lambda each: each.key,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ExchangeKind), BINDINGS, st.data())
def test_a_matcher_finds_what_a_look_at_every_binding_finds(
    kind: ExchangeKind, bindings: list[BindingRecord], data: st.DataObject
) -> None:
    matcher = matcher_for(kind)
    for each in bindings:
        matcher.add(each)
    left = list(bindings)
    if bindings:
        for each in data.draw(st.lists(st.sampled_from(bindings), unique=True)):
            matcher.remove(each)
            left.remove(each)
    for _ in range(3):
        key, headers = data.draw(WORDS), data.draw(HEADERS)
        found = {end.name for end in matcher.match(key, headers)}
        # A word of a message is no wildcard: the naive matcher has none in keys.
        expected = {each.destination for each in left if naively(kind, each, key, headers)}
        assert found == expected, (key, headers, left)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ExchangeKind), BINDINGS)
def test_nothing_is_left_of_bindings_that_were_removed(
    kind: ExchangeKind, bindings: list[BindingRecord]
) -> None:
    matcher = matcher_for(kind)
    for each in bindings:
        matcher.add(each)
    for each in bindings:
        matcher.remove(each)
    for content in vars(matcher).values():
        if kind is ExchangeKind.TOPIC:
            content = content.next or content.ends
        assert not content


@pytest.mark.parametrize(
    ("pattern", "key", "is_match"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("#.b", "b", True),
        ("#.b.#", "a.b.c.b", True),
        ("*.#.*", "a", False),
        ("*.#.*", "a.b", True),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("b", "*", False),
        ("a.b", "a.#", False),
    ],
)
def test_topic_patterns(pattern: str, key: str, is_match: bool) -> None:
    matcher = matcher_for(ExchangeKind.TOPIC)
    matcher.add(binding("q", pattern))
    assert bool(list(matcher.match(key, {}))) is is_match


def test_a_topic_key_visits_few_of_many_bindings() -> None:
    """Counted, not timed: a look at 10 000 bindings would be as many dictionaries."""
    matcher = matcher_for(ExchangeKind.TOPIC)
    for number in range(10_000):
        matcher.add(binding(f"q{number}", f"site.{number}.*.#"))
    found = list(matcher.match("site.77.temperature.celsius", {}))
    assert [end.name for end in found] == ["q77"]


def test_many_hashes_take_no_exponential_time() -> None:
    matcher = matcher_for(ExchangeKind.TOPIC)
    matcher.add(binding("q", ".".join(["#", "a"] * 30)))
    assert not list(matcher.match(".".join(["a"] * 120) + ".b", {}))
    assert list(matcher.match(".".join(["a"] * 120), {}))


def test_headers_are_compared_with_their_types() -> None:
    """RabbitMQ: a long 1 is no string "1"; integers of all widths are one type; void is any."""
    matcher = matcher_for(ExchangeKind.HEADERS)
    for name, wanted in (("int", 1), ("text", "1"), ("float", 1.0), ("bool", True), ("any", None)):
        matcher.add(binding(name, arguments={"h": wanted}))
    cases: tuple[tuple[object, set[str]], ...] = (
        (1, {"int", "any"}),
        ("1", {"text", "any"}),
        (1.0, {"float", "any"}),
        (True, {"bool", "any"}),
        (None, {"any"}),
        (b"1", {"any"}),
    )
    for value, expected in cases:
        found = {end.name for end in matcher.match("", fields_of({"h": value}))}
        assert found == expected, value
    both = matcher_for(ExchangeKind.HEADERS)
    both.add(binding("both", arguments={"h": 1, "i": 1}))
    assert [*both.match("", fields_of({"h": 1, "i": True}))] == []
    assert [end.name for end in both.match("", fields_of({"h": 1, "i": 1}))] == ["both"]
