"""Runs by seed: one run, many over all processors, and one again with its story."""

from __future__ import annotations

import gc
import logging
import random
import subprocess
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ringmq_gm.core.quick import QuickMember
from ringsim.processes import over_all
from ringsim.queues.course import QueueCourse
from ringsim.queues.world import QueueWorld
from ringsim.simulator.course import Course
from ringsim.simulator.rings import RingsCourse, RingsWorld
from ringsim.simulator.scenarios import Scenario, scenario_of
from ringsim.simulator.story import shortened
from ringsim.simulator.world import MakeMember, World

HERE = Path(__file__).resolve().parents[2]
STORY_LINES = 80


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    reason: str

    def story(self, make_member: MakeMember = QuickMember) -> str:
        """The last events, and the command that replays them."""
        world, error = replay(self.seed, make_member)
        assert world.trace is not None
        lines = "\n".join(map(shortened, world.trace[-STORY_LINES:]))
        return (
            f"seed {self.seed} at commit {commit()}: {self.reason}\n"
            f"replay: python cluster-tests/simulation/run.py --replay {self.seed}\n"
            f"{world.scenario}\nthe last {STORY_LINES} events:\n{lines}\n{error}"
        )


def world_of(
    seed: int,
    make_member: MakeMember = QuickMember,
    *,
    is_queue: bool | None = None,
    tracing: bool = False,
) -> World:
    rng = random.Random(seed)
    scenario = scenario_of(rng, is_queue=is_queue)
    return _world(scenario, rng, make_member, tracing=tracing)


def _world(
    scenario: Scenario, rng: random.Random, make_member: MakeMember, *, tracing: bool = False
) -> World:
    kind: type[World] = QueueWorld if scenario.is_queue else World
    if scenario.rings > 1:
        kind = RingsWorld
    return kind(scenario, rng, make_member=make_member, tracing=tracing)


def play(world: World) -> None:
    """Raises whatever is wrong."""
    logging.disable(logging.CRITICAL)
    try:
        if isinstance(world, QueueWorld):
            QueueCourse(world).play()
        elif isinstance(world, RingsWorld):
            RingsCourse(world).play()
        else:
            Course(world).play()
    finally:
        logging.disable(logging.NOTSET)


def run_seed(
    seed: int, make_member: MakeMember = QuickMember, *, is_queue: bool | None = None
) -> Failure | None:
    """One run; any exception of the core is a failure as much as a broken invariant. `is_queue`
    makes it one of a queue, or of a plain ring; else the seed decides."""
    return _run(world_of(seed, make_member, is_queue=is_queue), seed)


def run_scenario(
    scenario: Scenario, seed: int = 0, make_member: MakeMember = QuickMember
) -> Failure | None:
    """A scenario written by hand; the seed draws the delays."""
    return _run(_world(scenario, random.Random(seed), make_member), seed)


def _run(world: World, seed: int) -> Failure | None:
    try:
        play(world)
    except Exception as error:
        return Failure(seed, f"{type(error).__name__}: {error}")
    return None


def replay(seed: int, make_member: MakeMember = QuickMember) -> tuple[World, str]:
    """The run again, traced; and the traceback, empty if it went well."""
    world = world_of(seed, make_member, tracing=True)
    try:
        play(world)
    except Exception:
        return world, traceback.format_exc()
    return world, ""


def run_many(
    seeds: range, *, processes: int | None = None, reached: Counter[str] | None = None
) -> list[Failure]:
    """All seeds, over all processors; the failures in order of their seeds. Adds to `reached` what
    the runs have come to (`coverage`)."""
    chunk = 100
    parts = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    failures: list[Failure] = []
    for found, counts in over_all(_run_part, parts, processes):
        failures += found
        if reached is not None:
            # Not `+=`, which drops the counts that are 0.
            reached.update(counts)
    return failures


def _run_part(seeds: range) -> tuple[list[Failure], Counter[str]]:
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    # A hundred runs leave some tens of MB: to look for cycles in between takes longer.
    gc.disable()
    try:
        for seed in seeds:
            world = world_of(seed)
            failure = _run(world, seed)
            if failure is not None:
                failures.append(failure)
            counts.update(world.coverage.counts)
    finally:
        gc.enable()
        gc.collect()
    return failures, counts


def failures_of(seeds: Iterable[int], make_member: MakeMember = QuickMember) -> Iterator[Failure]:
    for seed in seeds:
        failure = run_seed(seed, make_member)
        if failure is not None:
            yield failure


def commit() -> str:
    """The commit that is checked out, with a mark if files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown (no git)"
    return done.stdout.strip()
