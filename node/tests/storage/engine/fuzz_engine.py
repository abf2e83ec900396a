"""The engine against its model for as long as you like, at about 20 runs a second.

    python -m node.tests.storage.engine.fuzz_engine --seconds 600 --seed 1

Each run is a plan: limits and steps, all from one seed. A plan that fails is shortened by the steps
that it also fails without, and the rest is printed with its story: one plan for each place of a
failure. Ends with 1 if anything has. `test_model` is the same for the suite.
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

from node.tests.storage.engine.hand import by_hand
from node.tests.storage.engine.machine import NAMES, Engine

from ringmq_node.storage import StoreLimits

# The name of a method of `Engine`, and its arguments.
Step = tuple[str, tuple[object, ...]]
ORDERS = ("first", "last", "every other", "any", "all")


def random_limits(rng: random.Random) -> StoreLimits:
    some = rng.choice
    return StoreLimits(
        queue_memory_bytes_max=some([0, 3_000, 1 << 28]),
        journal_entries_max=some([20, 200]),
        journal_bytes_max=some([1_500, 20_000]),
        flush_piece_bytes_max=some([300, 1 << 20]),
        sync_threads=some([1, 3]),
        sync_in_place_bytes_max=some([0, 16 << 10]),
        read_ahead_bytes=some([0, 1_000, 1 << 20]),
        idle_ticks_max=1,
        idle_journal_bytes_min=some([200, 1 << 20]),
        embed_below=some([0, 0, 64, 4096]),
        store_block_bytes_max=some([100, 64 << 10]),
        store_file_bytes_max=some([700, 4_000]),
        compaction_piece_bytes_max=some([200, 1 << 20]),
        recent_ids_max=some([2, 1000]),
        store_cache_bytes_max=some([0, 2_000, 16 << 20]),
    )


def random_step(rng: random.Random) -> Step:
    some = rng.choice
    name = some(NAMES)
    sizes = [some([0, 3, 40, 200, 900]) for _ in range(rng.randint(1, 4))] * some([1, 1, 5])
    places = [("a",), ("a",), ("b",), ("t",), NAMES]
    steps: list[tuple[int, Step]] = [
        (25, ("publish", (some(places), sizes, rng.random() < 0.3, rng.randint(0, 2)))),
        (5, ("consume", (name, some([1, 7, 1000]), some([100, 1 << 30])))),
        (15, ("settle_messages", (name, rng.randint(0, 2), some(ORDERS), rng.random() < 0.3))),
        (2, ("disconnect", (name,))),
        (4, ("take", (name, some([0, 1, 6, 1000]), some([0, 1 << 30])))),
        (2, ("purge", (name,))),
        (4, ("browse", (name, rng.randint(0, 60), rng.randint(60, 160), some([0, 300, 1 << 30])))),
        (1, ("delete", (name,))),
        (3, ("set_lazy", (name, rng.random() < 0.5))),
        (5, ("remember", (some([0.0, 0.0, 0.5, 20.0, float("inf")]),))),
        (3, ("pass_time", (some([0.1, 1.0, 5.0]),))),
        (16, ("work", (some([1, 2, 10]),))),
        (6, ("settle", ())),
        (3, ("catch_up", (name, some([0, 3, 30]), some([0, 2, 12]), some([0, 0, 5])))),
        (2, ("stop", ())),
        (4, ("cut_power", (some(["nothing", "everything", "anything", "anything"]),))),
    ]
    return rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]


@dataclass(frozen=True)
class Plan:
    limits: StoreLimits
    segment_positions: int
    seed: int
    # Each step with a seed for its open choices, so that leaving one step out changes no other.
    steps: tuple[tuple[int, Step], ...]

    @classmethod
    def of(cls, seed: int, steps: int) -> Plan:
        rng = random.Random(seed)
        limits, positions = random_limits(rng), rng.choice([8, 32])
        return cls(limits, positions, seed, tuple((at, random_step(rng)) for at in range(steps)))


@dataclass(frozen=True)
class Failure:
    at: int
    # The innermost functions: two failures of one place count as one.
    place: tuple[str, ...]
    story: str


def do(engine: Engine, step: Step) -> None:
    """Steps that can't be done now, because nobody is connected, are passed over."""
    name, arguments = step
    if name == "publish":
        names, sizes, transient, properties = arguments
        engine.publish(names, sizes, transient=transient, properties=properties)  # type: ignore[arg-type]
    elif name == "consume" and len(engine.queues[str(arguments[0])].clients) > 2:
        return
    elif name in ("settle_messages", "disconnect"):
        clients = engine.queues[str(arguments[0])].clients
        if clients and name == "disconnect":
            engine.disconnect(str(arguments[0]), min(clients))
        elif clients:
            engine.settle_some(*arguments)  # type: ignore[arg-type]
    else:
        getattr(engine, name)(*arguments)


def run(plan: Plan, events: Counter[str]) -> Failure | None:
    with by_hand(segment_positions=plan.segment_positions) as hand:
        engine = Engine(hand, plan.limits, random.Random(plan.seed))
        at = 0
        try:
            for seed, step in plan.steps:
                engine.rng.seed(seed)
                do(engine, step)
                engine.check()
                at += 1
            engine.rng.seed(plan.seed)
            engine.drain()
            engine.end()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            place = (type(error).__name__, *(frame.name for frame in frames))
            return Failure(at, place, traceback.format_exc())
        finally:
            events.update(engine.events)
            engine.abandon()
    return None


def shortened(plan: Plan, place: tuple[str, ...], *, seconds: float) -> Plan:
    """The same failure with fewer steps."""
    deadline = time.monotonic() + seconds
    size = len(plan.steps) // 2
    while size and time.monotonic() < deadline:
        at = 0
        while at < len(plan.steps) and time.monotonic() < deadline:
            shorter = replace(plan, steps=plan.steps[:at] + plan.steps[at + size :])
            failure = run(shorter, Counter())
            if failure is not None and failure.place == place:
                plan = replace(shorter, steps=shorter.steps[: failure.at + 1])
            else:
                at += size
        size //= 2
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description="The storage engine against its model.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=70)
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    deadline = time.monotonic() + wanted.seconds
    failed: Counter[tuple[str, ...]] = Counter()
    events: Counter[str] = Counter()
    seed = wanted.seed
    while time.monotonic() < deadline:
        plan = Plan.of(seed, wanted.steps)
        failure = run(plan, events)
        if failure is not None:
            failed[failure.place] += 1
            if failed[failure.place] == 1:
                plan = shortened(plan, failure.place, seconds=20)
                again = run(plan, Counter()) or failure
                print(f"seed {seed}, segments of {plan.segment_positions}: {plan.limits}")
                print(*plan.steps, sep="\n")
                print(again.story, flush=True)
        seed += 1
    print(f"{seed - wanted.seed} runs, {sum(failed.values())} failed", dict(failed))
    print(dict(events))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
