"""A queue with all its features against its model, for as long as you like.

    python -m node.tests.queue.whole.fuzz_queue --seconds 600 --seed 1

Each run is a plan: limits, rules and steps, all from one seed. A plan that fails is shortened by
the steps that it also fails without, and printed with its story. Ends with 1 if any has failed.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace

from node.tests.queue.whole.played import PlayedQueue
from node.tests.storage.engine.hand import by_hand

from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.storage import StoreLimits

# The name of a method of `PlayedQueue`, and its arguments.
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
                },
            ),
        ),
        (4, ("close_consumer", {"which": which})),
        (3, ("change_prefetch", {"which": which, "messages": messages, "size": size})),
        (22, ("settle", {"which": which, "verbs": verbs})),
        (4, ("get", {"count": some([1, 2, 9])})),
        (6, ("open_puller", {"messages": messages, "size": size})),
        (8, ("pull", {"which": which, "count": some([1, 2, 9])})),
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


@dataclass(frozen=True)
class Failure:
    at: int
    # The innermost functions: two failures of one place count as one.
    place: tuple[str, ...]
    story: str


def run(plan: Plan, events: Counter[str]) -> Failure | None:
    with by_hand(segment_positions=16) as hand:
        played = PlayedQueue(hand, plan.limits, random.Random(plan.seed), plan.levels)
        at = 0
        try:
            played.follow(plan.rules)
            for name, arguments in plan.steps:
                getattr(played, name)(**arguments)
                played.judge()
                at += 1
            played.drain()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            place = (type(error).__name__, *(f"{each.name}:{each.lineno}" for each in frames))
            return Failure(at, place, traceback.format_exc())
        finally:
            events.update(played.events)
            events["letters"] += len(played.target)
            played.end()
    return None


def shortened(plan: Plan, place: tuple[str, ...], *, seconds: float) -> Plan:
    """The same failure with fewer steps."""
    until = time.monotonic() + seconds
    size = max(len(plan.steps) // 2, 1)
    while size and time.monotonic() < until:
        at = 0
        while at < len(plan.steps) and time.monotonic() < until:
            shorter = replace(plan, steps=plan.steps[:at] + plan.steps[at + size :])
            failure = run(shorter, Counter())
            if failure is not None and failure.place == place:
                plan = shorter
            else:
                at += size
        size //= 2
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description="A queue with all its features against its model.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    until = time.monotonic() + wanted.seconds
    failed: Counter[tuple[str, ...]] = Counter()
    events: Counter[str] = Counter()
    seed = wanted.seed
    while time.monotonic() < until:
        plan = Plan.of(seed, wanted.steps)
        failure = run(plan, events)
        if failure is not None:
            failed[failure.place] += 1
            if failed[failure.place] == 1:
                plan = shortened(plan, failure.place, seconds=20)
                again = run(plan, Counter()) or failure
                print(f"seed {seed}, {plan.levels} levels: {plan.rules}, {plan.limits}")
                print(*plan.steps, sep="\n")
                print(again.story, flush=True)
        seed += 1
    print(f"{seed - wanted.seed} runs, {sum(failed.values())} failed", dict(failed))
    print(dict(events))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
