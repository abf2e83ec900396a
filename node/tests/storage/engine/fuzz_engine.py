"""The engine against its model for as long as you like, at about 20 runs a second.

    python -m node.tests.storage.engine.fuzz_engine --seconds 600 --seed 1

Each run is a plan: limits and steps, all from one seed. A plan that fails is shortened by the steps
that it also fails without, and the rest is printed with its story: one plan for each place of a
failure. Ends with 1 if anything has. `test_model` is the same for the suite.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from dataclasses import dataclass

from node.tests.plans import Failure, fuzz
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
        round_queues_max=some([1, 2, 3, 200]),
        round_bytes_max=some([300, 500, 2_000, 4 << 20]),
        share_bytes_max=some([1, 100, 200, 700, 1 << 20]),
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
        commit_log_bytes_max=some([1_500, 32 << 20]),
        write_behind_bytes_max=some([0, 500, 2 << 20]),
        write_behind_entries_max=some([3, 2048]),
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
            return Failure.of(error, at)
        finally:
            events.update(engine.events)
            engine.abandon()
    return None


def main() -> int:
    logging.disable(logging.CRITICAL)
    return fuzz("The storage engine against its model.", Plan.of, run, steps=70)


if __name__ == "__main__":
    sys.exit(main())
