"""A queue with all its features, from fixed seeds: `fuzz_queue` goes on with others.

Times to live, priorities, lengths with all overflows, dead letters and their target, delivery
limits, consumers of all terms and shares of windows, leases, acknowledgements by position,
time-outs, requeues, purges, take-overs and power cuts, over the real store.
"""

from __future__ import annotations

from collections import Counter

import pytest
from node.tests.queue.whole.fuzz_queue import Plan, Step, run

from ringmq_node.model.rules import QueueRules
from ringmq_node.storage import StoreLimits

SEEDS = 30
STEPS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_the_queue_is_as_its_model(first: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(first, first + 10):
        failure = run(Plan.of(seed, STEPS), events)
        assert failure is None, f"seed {seed}, step {failure.at}: {failure.story}"
    # It has looked at something.
    names = ("given", "pulled", "requeued", "letters", "restarts", "refused", "leases", "short")
    assert all(events[name] for name in (*names, "acknowledged below"))


def test_what_a_single_active_consumer_lets_go_of_is_in_front_of_the_next_ones_messages() -> None:
    """The ring takes some of the requeues late: random plans seldom have all that it needs."""
    consumer: dict[str, object] = {"messages": 2, "size": 100, "priority": 0, "exclusive": False}
    published: dict[str, object] = {
        "sizes": [3] * 5,
        "ttl_ms": None,
        "priority": 0,
        "transient": False,
    }
    steps: tuple[Step, ...] = (
        ("publish", published),
        ("open_consumer", consumer),
        ("open_consumer", consumer),
        ("open_consumer", consumer),
        ("release", {}),
        ("settle", {"which": 0, "verbs": ["requeued", "acked"]}),
        ("close_consumer", {"which": 0}),
        ("close_consumer", {"which": 0}),
    )
    rules = QueueRules(single_active_consumer=True)
    for seed in range(5):
        failure = run(Plan(seed, 0, rules, StoreLimits(), steps), Counter())
        assert failure is None, failure.story


def test_consumers_that_time_out_together_lose_their_messages_one_after_the_other() -> None:
    """The first has messages 0 and 2, the second has 1, and all have expired meanwhile: their
    letters leave as 0, 2, 1 (seeds 920709 and 923657). In RabbitMQ, too, each channel times out by
    itself, and the queue drops what has expired after each requeue."""
    consumer: dict[str, object] = {"messages": 5, "size": 50, "priority": 0, "exclusive": False}
    published: dict[str, object] = {
        "sizes": [40, 40, 3],
        "ttl_ms": None,
        "priority": 0,
        "transient": False,
    }
    steps: tuple[Step, ...] = (
        ("open_consumer", consumer),
        ("open_consumer", {**consumer, "messages": 1}),
        ("publish", published),
        ("release", {}),
        # Both have them as of now.
        ("wait", {"ms": 1}),
        ("wait", {"ms": 9}),
        ("release", {}),
    )
    rules = QueueRules(message_ttl_ms=5, consumer_timeout_ms=1, dead_letter_exchange="dlx")
    for seed in range(5):
        events: Counter[str] = Counter()
        failure = run(Plan(seed, 0, rules, StoreLimits(), steps), events)
        assert failure is None, failure.story
        assert (events["timed out"], events["letters"]) == (2, 3)
