"""Simulates rings, many seeds at once, or one again with its story.

python cluster-tests/simulation/run.py --seeds 0:10000
python cluster-tests/simulation/run.py --replay 4711
python cluster-tests/simulation/run.py --planted [BUG ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

# The faults are shared with the tests of real clusters; pytest has this folder on its path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from ringsim.planted import try_all
from ringsim.simulator.runs import replay, run_many
from ringsim.simulator.story import shortened

STORIES_MAX = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:1000", help="first:end, default %(default)s")
    parser.add_argument("--processes", type=int, help="default: one for each processor")
    parser.add_argument("--replay", type=int, metavar="SEED", help="this one, with all its events")
    parser.add_argument(
        "--planted", nargs="*", metavar="BUG", help="how surely seeds find planted bugs"
    )
    arguments = parser.parse_args()
    if arguments.planted is not None:
        missed = 0
        for finding in try_all(arguments.planted, processes=arguments.processes):
            print(finding, flush=True)
            missed += not finding.is_enough
        return 1 if missed else 0
    if arguments.replay is not None:
        world, error = replay(arguments.replay)
        assert world.trace is not None
        print(world.scenario, *map(shortened, world.trace), sep="\n")
        print(f"trace {world.trace_hash()}, {world.steps} steps", error or "all is well", sep="\n")
        return 1 if error else 0
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end))
    began = time.perf_counter()
    reached: Counter[str] = Counter()
    failures = run_many(seeds, processes=arguments.processes, reached=reached)
    took = time.perf_counter() - began
    for failure in failures[:STORIES_MAX]:
        print(failure.story(), end="\n\n")
    for failure in failures[:50]:
        print(f"seed {failure.seed}: {failure.reason[:200]}")
    print("reached:", *(f"{count:9} {what}" for what, count in sorted(reached.items())), sep="\n")
    print(f"{len(seeds)} seeds in {took:.1f} s, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
