"""Patterns of policies: the lookahead that is taken says what Python's own `re` says of it."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmq_node.model.patterns import compiled
from ringmq_node.model.policies import Mirrors, Policy, PolicyDefinition
from ringmq_node.model.reasons import BrokerError, Reason

NAMES = [
    *("amq.gen-1", "amq.", "amq", "amqx", "amqp.x", "orders", "x.amq.y", "amq|x", "a", "b", "ba"),
    *("]x", ")x", "(x", "-", "test.1", "AMQ.x", "é", "é.amq.", "a.b", "a)b", "\\"),
]


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(?!amq\.).*",
        r"^(?!amq\.)",
        r"^(?!amq\.).*$",
        r"^(?!amq\.).+\.y$",
        r"^(?!amq.).*",
        r"^(?!amq\.|test\.).*",
        r"^(?!(amq\.|test\.)).*",
        r"^(?!(?:a(m|x)q)[.]).*",
        r"^(?!.*\.amq).*",
        r"^(?!a$).*",
        r"^(?!)a",
        r"^(?![)]).*",
        r"^(?![])]).*",
        r"^(?![^]a)]).*",
        r"^(?!\)).*",
        r"^(?!\\).*",
        r"^(?![\]|)]).*",
        r"^(?!a)(b|orders)",
        r"^(?!a)[|b]",
        r"^(?!a)\|?",
        r"^(?!(?i:amq)\.).*",
    ],
)
def test_a_lookahead_at_the_start_matches_as_in_perl(pattern: str) -> None:
    ours, theirs = compiled(pattern), re.compile(pattern)
    for name in NAMES:
        assert (ours.search(name) is not None) == (theirs.search(name) is not None), name


WORDS = st.text("am.q|()[]\\^-$*", max_size=7)


@settings(max_examples=1500, deadline=None)
@given(WORDS, WORDS, st.text("amq.|()[]\\-", min_size=1, max_size=6))
def test_no_lookahead_is_taken_for_another_one(excluded: str, rest: str, name: str) -> None:
    pattern = f"^(?!{excluded}){rest}"
    try:
        ours = compiled(pattern)
    except BrokerError:
        return
    try:
        with warnings.catch_warnings():
            # Of "[[", which Python may read in another way one day.
            warnings.simplefilter("ignore", FutureWarning)
            theirs = re.compile(pattern)
    except re.error:
        # RE2 takes a little more, such as a** as a*.
        return
    assert (ours.search(name) is not None) == (theirs.search(name) is not None)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?=a)b", "of lookarounds one is taken"),
        (r"a(?!b)", "of lookarounds one is taken"),
        (r"(?<!a)b", "of lookarounds one is taken"),
        (r"(?!amq\.).*", "of lookarounds one is taken"),
        (r"^(?!a)(?!b).*", "of lookarounds one is taken"),
        (r"^(?!a(?=b)).*", "of lookarounds one is taken"),
        (r"^(?!a).*|b", "have to be in a group"),
        (r"^(?!a", "there is no )"),
        (r"^(?![a).*", "there is no )"),
        (r"^(?!\Qa)\E).*", "beside a lookahead"),
        (r"^(?!a)b)", "unexpected )"),
        (r"^(?!a)b)(?:c", "unexpected )"),
        (r"^(?!a)(b", "missing )"),
        (r"^(?!*).*", "repetition"),
        (r"(", "missing )"),
    ],
)
def test_other_lookarounds_are_refused_with_the_one_that_is_taken(pattern: str, why: str) -> None:
    with pytest.raises(BrokerError) as caught:
        compiled(pattern)
    assert caught.value.reason is Reason.BAD_REQUEST
    assert caught.value.metadata["field"] == "pattern"
    assert why in str(caught.value)
    assert repr(pattern) in str(caught.value)


def test_the_time_of_a_lookahead_is_linear_too() -> None:
    pattern = compiled("^(?!(a+)+$)(b+)+$")
    assert pattern.search("a" * 254 + "!") is None
    assert pattern.search("b" * 254) is not None


def test_a_policy_keeps_its_pattern_as_it_was_written() -> None:
    policy = Policy("ha-all", r"^(?!amq\.).*", 0, PolicyDefinition(Mirrors()))
    assert Policy.from_json(policy.to_json()) == policy
    assert policy.to_json()["pattern"] == r"^(?!amq\.).*"
    assert [policy.matches(name) for name in ("orders", "amq.gen-x", "shop\x1forders")] == [
        *(True, False, False)
    ]
