"""python -m chaos: faults by seed against real nodes in network namespaces, and the verdict.

Exit codes: 0 all is well; 1 something was lost, duplicated, logged or stuck; 2 it can't run here.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
from pathlib import Path

from faults.rounds import KINDS
from history.records import read
from loops import run
from nemesis.network import NoNamespacesError

from chaos import picture
from chaos.disks import Disks, NoDisksError
from chaos.figures import look_at
from chaos.report import Outcome
from chaos.run import NODES, Options, judge, play

SEED_MAX = 1_000_000


def parsed(words: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="chaos", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="default %(default)s")
    parser.add_argument("--seed", type=int, help="the rounds of an earlier run; default: chance")
    parser.add_argument("--rounds", type=int, default=0, help="no more than this many")
    parser.add_argument("--folder", type=Path, help="of all that is written; it is emptied before")
    parser.add_argument(
        "--kind", action="append", default=[], choices=list(KINDS), help="only these, if given"
    )
    parser.add_argument(
        "--untimed",
        action="store_true",
        help="tell the times without service, and don't judge them: a busy machine adds to them",
    )
    parser.add_argument(
        "--keep-disks", action="store_true", help="also if all is well: to look at the stores"
    )
    found = parser.parse_args(words)
    seed = random.randrange(SEED_MAX) if found.seed is None else found.seed
    folder = found.folder or Path("build") / "chaos" / f"seed-{seed}"
    return Options(
        seed,
        found.minutes,
        folder.resolve(),
        found.rounds,
        tuple(found.kind),
        untimed=found.untimed,
        keep_disks=found.keep_disks,
    )


def again(options: Options) -> str:
    """The command that plays the same rounds."""
    words = [f"make chaos SEED={options.seed} MINUTES={options.minutes:g}"]
    more = [f'--kind "{kind}"' for kind in options.kinds]
    if options.untimed:
        more.append("--untimed")
    if options.rounds_max:
        more.append(f"--rounds {options.rounds_max}")
    return words[0] + (f" ARGS='{' '.join(more)}'" if more else "")


def say(line: str) -> None:
    print(line, flush=True)


async def _until_told(options: Options) -> Outcome:
    """SIGTERM ends a run as Ctrl-C does: nodes, disks and namespaces are taken down."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await play(options, say)


def main(words: list[str]) -> int:
    options = parsed(words)
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    say(f"seed {options.seed}, {options.minutes:g} minutes; all that is written: {options.folder}")
    try:
        outcome = run(_until_told(options))
    except (NoNamespacesError, NoDisksError, FileNotFoundError) as error:
        say(f"chaos can't run here: {error}")
        return 2
    except (asyncio.CancelledError, KeyboardInterrupt):
        say(f"interrupted; again: {again(options)}")
        return 1
    judge(outcome, options)
    seen = look_at(read(options.folder / "history.jsonl"))
    picture.save(options.folder / "timeline.png", seen, f"seed {options.seed}")
    text = outcome.text(again(options))
    (options.folder / "report.txt").write_text(text + "\n")
    say(f"\n{text}\npicture: {options.folder / 'timeline.png'}")
    if not outcome.is_well:
        return 1
    if not options.keep_disks:
        Disks(options.folder, NODES).throw_away()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
