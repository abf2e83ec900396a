"""`ringmq demo`: the promise of this broker, kept before one's eyes."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from ringmq_node.cli.demo.course import Demo, DemoError, Settings
from ringmq_node.cli.demo.lines import COUNT_MAX, InputError, Lines
from ringmq_node.cli.demo.screen import make_view
from ringmq_node.cli.errors import EXIT_BROKEN, EXIT_FAILED
from ringmq_node.cli.options import json_option, run
from ringmq_node.cli.output import emit_facts, emit_json, fail

COUNT = 100_000
# Below it there is hardly a chunk in flight when the master dies.
COUNT_MIN = 1000
DEADLINE_S = 120.0


@click.command()
@click.option(
    "--input",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish the lines of this file. Default: some sonnets.",
)
@click.option(
    "--count",
    type=click.IntRange(COUNT_MIN, COUNT_MAX - 1),
    default=COUNT,
    show_default=True,
    help="How many messages; the lines are repeated.",
)
@click.option("--nodes", type=click.IntRange(3, 9), default=3, show_default=True)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new directory for the nodes. Default: a temporary one.",
)
@click.option("--keep", is_flag=True, help="Leave the nodes' directory, with their logs.")
@click.option(
    "--deadline",
    type=click.FloatRange(1),
    default=DEADLINE_S,
    show_default=True,
    metavar="SECONDS",
    help="When to give up.",
)
@json_option
def demo(
    path: Path | None,
    count: int,
    nodes: int,
    data: Path | None,
    keep: bool,
    deadline: float,
    as_json: bool,
) -> None:
    """Kill the master of a mirrored queue under load, and count what got lost.

    Starts nodes on this machine, publishes with confirms and consumes at the same
    time, kills the master half way with SIGKILL, starts it again, and judges. Exit
    code 3 if anything was lost, duplicated, reordered or damaged.
    """
    try:
        lines = Lines(path)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    if data is not None and data.exists():
        raise click.UsageError(f"{data} is there already")
    directory = data or Path(tempfile.mkdtemp(prefix="ringmq-demo-"))
    settings = Settings(directory, nodes, count, lines, deadline)
    wanted = keep
    try:
        with make_view() as view:
            demo_run = Demo(settings, view)
            failure = _carry_through(demo_run)
        state = demo_run.state
        (emit_json if as_json else emit_facts)(state.report())
        # To find out why.
        wanted = keep or bool(failure) or state.broken
    finally:
        if wanted:
            print(f"ringmq: the nodes' data and logs are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    if failure:
        fail(failure)
        raise click.exceptions.Exit(EXIT_FAILED)
    if state.broken:
        raise click.exceptions.Exit(EXIT_BROKEN)


def _carry_through(demo_run: Demo) -> str:
    """Empty, or why it could not be."""

    async def work() -> None:
        # As Ctrl-C: the nodes have to be ended.
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, signal.raise_signal, signal.SIGINT
        )
        await demo_run.run()

    try:
        run(work())
    except DemoError as error:
        return str(error)
    return ""
