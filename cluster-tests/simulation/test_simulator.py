"""Whole rings from seeds, and that a seed is all that a run depends on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from itertools import count
from typing import get_args

import pytest
from faults.vocabulary import REAL_ONLY, Fault
from ringsim.simulator.coverage import CACHE_FULL, CHANGES
from ringsim.simulator.runs import HERE, Failure, play, replay, run_many, world_of
from ringsim.simulator.scenarios import scenario_of

from ringmq_base import pieces

QUICK = range(200)
# About 30 ms of one processor for each ring. `make seeds` has those up to 10 000, `make evidence` a
# million.


def stories_of(failures: list[Failure]) -> str:
    return "\n\n".join(failure.story() for failure in failures[:2])


def test_nothing_is_lost_in_two_hundred_rings() -> None:
    """Every confirmed op is in every later master's log, and on every synchronised disk; and once
    the faults stop, the ring is whole again, and quiet."""
    failures = run_many(QUICK, processes=2)
    assert not failures, stories_of(failures)


@pytest.mark.slow
def test_the_seeds_reach_every_change_of_a_view_and_a_full_cache() -> None:
    """A kind that no seed draws is a blind spot of every run: `begun with a loss` was one."""
    unreached = {*CHANGES, CACHE_FULL}
    for seed in range(600):
        if not unreached:
            break
        world = world_of(seed, is_queue=False)
        play(world)
        unreached -= {kind for kind in unreached if world.coverage.counts[kind]}
    assert not unreached


@pytest.mark.slow
def test_the_seeds_draw_every_fault_that_a_simulation_knows() -> None:
    drawn = {
        type(fault) for seed in range(2000) for fault in scenario_of(random.Random(seed)).faults
    }
    assert drawn == {*get_args(Fault)} - {*REAL_ONLY}


def replayed(seed: int, hash_seed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "run.py"), "--replay", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.compute
@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 17, 4711])
def test_a_seed_gives_the_same_run_in_every_process(seed: int) -> None:
    hashes = set()
    for hash_seed in ("1", "2"):
        done = replayed(seed, hash_seed)
        assert done.returncode == 0, done.stdout[-2000:]
        hashes.add(done.stdout.splitlines()[-2])
    assert len(hashes) == 1


@pytest.mark.slow
def test_a_busy_machine_changes_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that doesn't get its processor takes long for each piece of work. Seed 17, whose
    replicas catch up, once ended differently for it."""
    traces = []
    for took_s in (0.0, 0.004):
        monkeypatch.setattr(pieces, "_clock", partial(next, count(step=took_s)))
        world, error = replay(17)
        assert not error
        traces.append(world.trace_hash())
    assert traces[0] == traces[1]


def test_a_failure_names_its_seed_the_commit_and_the_command_that_replays_it() -> None:
    story = Failure(5, "an example").story()
    assert story.startswith("seed 5 at commit ")
    assert "run.py --replay 5" in story
