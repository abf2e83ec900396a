"""The options that many commands have, and the running of a command's coroutine."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from math import isnan
from typing import Any, TypeVar

import click
import uvloop

import ringmq
from ringmq import Client
from ringmq_node.cli.errors import first_error

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

SEEDS = "127.0.0.1:7801,127.0.0.1:7802,127.0.0.1:7803"
# The client library's own default is 30 s, which is for programs. A person at a terminal
# wants to know sooner that no node answers.
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command asks, as `client_options` read it from the command line.

    `timeout_s` is the client's deadline for each call.
    """

    seeds: str
    timeout_s: float
    as_json: bool
    vhost: str = "/"

    def run(self, work: Callable[[Client], Awaitable[R]]) -> R:
        """Runs `work` with a client of the cluster, which is closed afterwards."""

        async def with_client() -> R:
            async with ringmq.connect(
                self.seeds, deadline_s=self.timeout_s, vhost=self.vhost
            ) as client:
                return await work(client)

        return run(with_client())


class NumberRange(click.FloatRange):
    """Numbers from a bound on. NaN, which click takes for one, is below no bound."""

    name = "float range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--seeds`, `--timeout`, `--vhost` and `--json`: one argument of the command, `target`."""

    @functools.wraps(command)
    def with_target(
        *, seeds: str, timeout_s: float, as_json: bool, vhost: str, **others: Any
    ) -> Any:
        return command(target=Target(seeds, timeout_s, as_json, vhost), **others)

    seeds_option = click.option(
        "--seeds",
        "-s",
        envvar="RINGMQ_SEEDS",
        default=SEEDS,
        show_default=True,
        metavar="HOST:PORT,...",
        help="Some nodes of the cluster (or RINGMQ_SEEDS).",
    )
    timeout_option = click.option(
        "--timeout",
        "timeout_s",
        type=NumberRange(0.1),
        default=TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long the cluster may take to answer.",
    )
    vhost_option = click.option(
        "--vhost",
        envvar="RINGMQ_VHOST",
        default="/",
        show_default=True,
        help="The vhost of the queues and exchanges (or RINGMQ_VHOST).",
    )
    return seeds_option(timeout_option(vhost_option(json_option(with_target))))


def run(work: Coroutine[Any, Any, R]) -> R:
    """Runs `work` on an event loop of its own, of the kind that nodes use.

    Ctrl-C cancels `work` and raises `KeyboardInterrupt`. When several tasks of a group
    fail, the first error is raised: a command has one line to say why it failed.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from group
