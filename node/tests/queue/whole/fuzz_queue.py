"""A queue with all its features against its model, for as long as you like.

    python -m node.tests.queue.whole.fuzz_queue --seconds 600 --seed 1

Each run is a plan: limits, rules and steps, all from one seed. A plan that fails is shortened by
the steps that it also fails without, and printed with its story. Ends with 1 if any has failed.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from dataclasses import dataclass

from node.tests.plans import Failure, fuzz
from node.tests.queue.whole.readers import ReadQueue
from node.tests.storage.engine.hand import by_hand

from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.queue.leases import LeaseAction
from ringmq_node.storage import StoreLimits

# The name of a method of `ReadQueue`, and its arguments.
Step = tuple[str, dict[str, object]]
VERBS = ("acked", "acked", "rejected", "requeued")


def random_rules(rng: random.Random, *, letters: bool) -> QueueRules:
    some = rng.choice
    return QueueRules(
        message_ttl_ms=some([None, None, None, 0, 5, 20]),
        max_length=some([None, None, 0, 2, 6]),
        max_length_bytes=some([None, None, 10, 60]),
        overflow=some([None, *Overflow]),
        dead_letter_exchange="dlx" if letters else None,
        delivery_limit=some([None, 0, 1, 3]),
        single_active_consumer=some([None, None, True]),
        consumer_timeout_ms=some([None, None, 1, 50]),
    )


def random_step(rng: random.Random, *, letters: bool) -> Step:
    some = rng.choice
    sizes = [some([0, 3, 40]) for _ in range(rng.randint(1, 5))]
    messages, size = some([1, 2, 5, 100]), some([1, 50, 10_000])
    which, arrived = rng.randint(0, 3), rng.randint(0, 3)
    kept = some(["nothing", "everything", "anything"])
    verbs = [some(VERBS) for _ in range(rng.randint(1, 5))]
    ttl = some([None, None, None, 0, 1, 30])
    steps: list[tuple[int, Step]] = [
        (
            24,
            (
                "publish",
                {
                    "sizes": sizes,
                    "ttl_ms": ttl,
                    "priority": some([0, 1, 3, 9]),
                    "transient": rng.random() < 0.2,
                },
            ),
        ),
        (
            8,
            (
                "open_consumer",
                {
                    "messages": messages,
                    "size": size,
                    "priority": some([0, 0, 1, -1]),
                    "exclusive": rng.random() < 0.1,
                    "shares_window": rng.random() < 0.4,
                },
            ),
        ),
        (4, ("close_consumer", {"which": which})),
        (3, ("change_prefetch", {"which": which, "messages": messages, "size": size})),
        (22, ("settle", {"which": which, "verbs": verbs})),
        (4, ("get", {"count": some([1, 2, 9])})),
        (6, ("open_puller", {"messages": messages, "size": size})),
        (8, ("pull", {"which": which, "count": some([1, 2, 9])})),
        (
            8,
            (
                "change_share",
                {"which": which, "messages": some([0, 1, 2, 5]), "size": some([0, 10, 50, 500])},
            ),
        ),
        (
            6,
            (
                "change_lease",
                {
                    "action": some([*LeaseAction]),
                    "name": some(["n", "m"]),
                    "who": rng.randint(0, 2),
                    "ttl_ms": some([100, 105, 130]),
                },
            ),
        ),
        (4, ("acknowledge_below", {"quarters": some([1, 2, 4, 4])})),
        (1, ("purge", {})),
        (5, ("follow", {"rules": random_rules(rng, letters=letters)})),
        (8, ("wait", {"ms": some([1, 7, 60])})),
        (22, ("release", {})),
        (4, ("set_target", {"is_up": rng.random() < 0.6})),
        (3, ("take_over", {"arrived": arrived})),
        (3, ("restart", {"kept": kept, "arrived": arrived})),
    ]
    return rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


@dataclass(frozen=True)
class Plan:
    seed: int
    levels: int
    rules: QueueRules
    limits: StoreLimits
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int, steps: int) -> Plan:
        rng = random.Random(seed)
        letters = rng.random() < 0.7
        limits = StoreLimits(
            queue_memory_bytes_max=rng.choice([0, 3_000, 1 << 28]),
            journal_entries_max=rng.choice([20, 200]),
            embed_below=rng.choice([0, 4096]),
        )
        rules = random_rules(rng, letters=letters)
        made = tuple(random_step(rng, letters=letters) for _ in range(steps))
        return cls(seed, rng.choice([0, 0, 5]), rules, limits, made)


def run(plan: Plan, events: Counter[str]) -> Failure | None:
    with by_hand(segment_positions=16) as hand:
        played = ReadQueue(hand, plan.limits, random.Random(plan.seed), plan.levels)
        at = 0
        try:
            played.follow(plan.rules)
            for name, arguments in plan.steps:
                getattr(played, name)(**arguments)
                played.judge()
                at += 1
            played.drain()
        except Exception as error:
            return Failure.of(error, at)
        finally:
            events.update(played.events)
            events["letters"] += len(played.target)
            played.end()
    return None


def main() -> int:
    logging.disable(logging.CRITICAL)
    return fuzz("A queue with all its features against its model.", Plan.of, run, steps=60)


if __name__ == "__main__":
    sys.exit(main())
