"""What commands have in common: options, and a coroutine's run under a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from ringmq_node.cli.errors import first_error

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

SEEDS = "127.0.0.1:7801,127.0.0.1:7802,127.0.0.1:7803"
# The client's own 30 s is for programs; somebody at a terminal wants to know sooner.
TIMEOUT_S = 10.0


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def seeds_option(command: F) -> F:
    return click.option(
        "--seeds",
        "-s",
        envvar="RINGMQ_SEEDS",
        default=SEEDS,
        show_default=True,
        metavar="HOST:PORT,...",
        help="Some nodes of the cluster (or RINGMQ_SEEDS).",
    )(command)


def client_options(command: F) -> F:
    """`--seeds`, `--timeout` and `--json`, as `seeds`, `timeout` and `as_json`."""
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(0.1),
        default=TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long the cluster may take to answer.",
    )
    return seeds_option(timeout(json_option(command)))


def run(work: Coroutine[Any, Any, R]) -> R:
    """On an event loop of its own, of the kind that nodes use. Ctrl-C cancels it and raises
    `KeyboardInterrupt`.

    What several tasks of a group raised comes as the first of them.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from group
