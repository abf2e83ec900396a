"""What is told to a master, and in which order."""

from __future__ import annotations

from ringmq_base.limits import SETTLE_RANGES_MAX
from ringmq_base.window import Share
from ringmq_node.broker.consuming.outgoing import (
    CancelWord,
    OutgoingWords,
    PrefetchWord,
    PullWord,
    SettleWord,
    ShareWord,
    Word,
)


def said(words: OutgoingWords) -> list[Word]:
    found: list[Word] = []
    while (word := words.next()) is not None:
        found.append(word)
    return found


def test_shares_go_before_what_is_settled_and_pulls_and_the_cancel_behind_it() -> None:
    words = OutgoingWords()
    words.cancel()
    words.change_prefetch(5, 0)
    words.settle([(1, 2), (3, 3)], [(4, 4)], [(6, 6)])
    words.change_share(Share(1, 10))
    words.change_share(Share(0, 0))
    assert said(words) == [
        ShareWord(Share(1, 10)),
        ShareWord(Share(0, 0)),
        SettleWord([(1, 3)], [(4, 4)], [(6, 6)]),
        PrefetchWord(5, 0),
        CancelWord(),
    ]


def test_one_pull_is_out_at_a_time_behind_what_its_caller_has_put_back() -> None:
    words = OutgoingWords()
    first, second = PullWord(1, 0), PullWord(2, 0)
    words.pull(first)
    words.pull(second)
    assert said(words) == [first]
    assert not words.drop_pull(0)
    words.pulled()
    words.settle([], [], [(1, 1)])
    assert said(words) == [SettleWord([], [], [(1, 1)]), second]
    third = PullWord(3, 0)
    words.pull(third)
    assert words.drop_pull(1)
    words.pulled()
    assert said(words) == []


def test_the_next_stream_hears_nothing_that_was_about_the_last_one_but_its_pulls() -> None:
    words = OutgoingWords()
    pull = PullWord(1, 0)
    words.pull(pull)
    assert said(words) == [pull]
    words.settle([(1, 1)], [], [])
    words.change_share(Share(1, 1))
    words.change_prefetch(1, 1)
    words.stream_began([pull])
    assert said(words) == [pull]


def test_a_word_settles_no_more_than_a_request_may() -> None:
    words = OutgoingWords()
    ranges = [(2 * n, 2 * n) for n in range(SETTLE_RANGES_MAX + 5)]
    words.settle(ranges, [], [(1, 1)])
    assert said(words) == [
        SettleWord(ranges[:SETTLE_RANGES_MAX], [], []),
        SettleWord(ranges[SETTLE_RANGES_MAX:], [], [(1, 1)]),
    ]
    assert words.is_awaiting
    words.settled(ranges)
    assert not words.is_awaiting
