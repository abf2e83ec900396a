"""Plans of steps, drawn from seeds: many are run, and those that fail are made shorter.

`fuzz_queue` and `fuzz_engine` are made of it. What a plan does is theirs; that each place of a
failure is told once, by the shortest plan that could be found, is written here.

A run of one plan depends on its seed alone, so `--seed N --seconds 0` plays it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

SHORTENING_S_MAX = 20.0
# Of a traceback, innermost: two failures of the same ones count as one.
PLACE_FRAMES = 3


class Plan(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def steps(self) -> tuple[Any, ...]: ...


P = TypeVar("P", bound=Plan)


@dataclass(frozen=True)
class Failure:
    # The step.
    at: int
    # The innermost functions.
    place: tuple[str, ...]
    story: str

    @classmethod
    def of(cls, error: Exception, at: int) -> Failure:
        frames = traceback.extract_tb(error.__traceback__)[-PLACE_FRAMES:]
        return cls(
            at,
            (type(error).__name__, *(f"{each.name}:{each.lineno}" for each in frames)),
            traceback.format_exc(),
        )


# Adds to the counter what the plan has come to.
Run = Callable[[P, Counter[str]], Failure | None]


def shortened(plan: P, run: Run[P], place: tuple[str, ...], *, seconds: float) -> P:
    """The same failure with fewer steps."""
    until = time.monotonic() + seconds
    size = max(len(plan.steps) // 2, 1)
    while size and time.monotonic() < until:
        at = 0
        while at < len(plan.steps) and time.monotonic() < until:
            shorter = replace(plan, steps=plan.steps[:at] + plan.steps[at + size :])
            failure = run(shorter, Counter())
            if failure is not None and failure.place == place:
                # Steps after the failure are not run; the failure may be at the end of all.
                plan = replace(shorter, steps=shorter.steps[: failure.at + 1])
            else:
                at += size
        size //= 2
    return plan


def edited_since(moment: float) -> list[str]:
    """Source files of loaded modules that were edited since then.

    What runs is what they were. A traceback shows the lines that they have now, which are others.
    """
    files = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}
    return sorted(
        file
        for file in files
        if file.endswith(".py") and os.path.exists(file) and os.path.getmtime(file) > moment
    )


def tell(plan: Plan, failure: Failure, seed: int, wanted: argparse.Namespace, began: float) -> None:
    """Prints the shortened plan, how to run the whole of it again, and its story."""
    print(f"seed {seed}: {replace(plan, steps=())}", *plan.steps, sep="\n")
    spec = sys.modules["__main__"].__spec__
    command = f"-m {spec.name}" if spec is not None else sys.argv[0]
    print(f"again: python {command} --seed {seed} --steps {wanted.steps} --seconds 0")
    for file in edited_since(began):
        print(f"edited since this began, so that lines below may be wrong: {file}")
    print(failure.story, flush=True)


def fuzz(description: str, make: Callable[[int, int], P], run: Run[P], *, steps: int) -> int:
    """The command line of a fuzzer; the exit code is 1 if any plan has failed. At least one is run.

    `make` draws a plan from a seed and a number of steps, `steps` unless the command line says.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=steps)
    wanted = parser.parse_args()
    began = time.time()
    until = time.monotonic() + wanted.seconds
    failed: Counter[tuple[str, ...]] = Counter()
    events: Counter[str] = Counter()
    seed = wanted.seed
    while seed == wanted.seed or time.monotonic() < until:
        plan = make(seed, wanted.steps)
        failure = run(plan, events)
        if failure is not None:
            failed[failure.place] += 1
            if failed[failure.place] == 1:
                plan = shortened(plan, run, failure.place, seconds=SHORTENING_S_MAX)
                again = run(plan, Counter()) or failure
                tell(plan, again, seed, wanted, began)
        seed += 1
    print(f"{seed - wanted.seed} runs, {sum(failed.values())} failed", dict(failed))
    print(dict(events))
    return 1 if failed else 0
