"""`ringmq demo`: the options, the report and the exit code."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from ringmq_base.logs import LogFault
from ringmq_node.cli.demo.course import Demo, DemoError, DemoSettings
from ringmq_node.cli.demo.lines import COUNT_MAX, InputError, Lines
from ringmq_node.cli.demo.screen import screen_on_stderr
from ringmq_node.cli.errors import EXIT_BROKEN, EXIT_FAILED
from ringmq_node.cli.options import NumberRange, json_option, run
from ringmq_node.cli.output import emit_report, fail

COUNT = 100_000
# With fewer messages hardly a chunk is in flight when the master dies.
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
    type=NumberRange(1),
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
    code 3 if anything was lost, duplicated, reordered or damaged; 1 if a node logged
    an error.
    """
    try:
        lines = Lines(path)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    if data is not None and data.exists():
        raise click.UsageError(f"--data {data} exists: give a new directory")
    directory = data or Path(tempfile.mkdtemp(prefix="ringmq-demo-"))
    wanted = keep
    try:
        with screen_on_stderr() as screen:
            course = Demo(DemoSettings(directory, nodes, count, lines, deadline), screen)
            failure = _carry_through(course)
        state = course.state
        emit_report(state.report(), as_json=as_json)
        log_failure = _log_failure(course.log_faults())
        # The logs may tell why.
        wanted = keep or bool(failure or log_failure) or state.broken
    finally:
        if wanted:
            print(f"ringmq: the nodes' data and logs are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    if failure or log_failure:
        fail(failure or log_failure)
    if state.broken and not failure:
        raise click.exceptions.Exit(EXIT_BROKEN)
    if failure or log_failure:
        raise click.exceptions.Exit(EXIT_FAILED)


def _carry_through(course: Demo) -> str:
    """Empty, or why the demo didn't come to its end."""

    async def work() -> None:
        # SIGTERM, like Ctrl-C, cancels the course: its nodes have to be ended with it.
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, signal.raise_signal, signal.SIGINT
        )
        await course.run()

    try:
        run(work())
    except DemoError as error:
        return str(error)
    return ""


def _log_failure(faults: Sequence[LogFault]) -> str:
    """Empty, or the first error in a node's log, with its file and line."""
    if not faults:
        return ""
    first, *more = faults
    lines = first.text.splitlines()
    # Of a traceback, the record that it belongs to and the exception.
    text = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    others = f" ({len(more)} more)" if more else ""
    return f"a node has logged an error{others}: {first.file}:{first.line}: {text}"
