"""`ringmq bench`: how fast, how late, and whether anything got lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import ringmq
from ringmq_node.cli.bench.run import Bench, BenchError, Kind, Settings
from ringmq_node.cli.errors import EXIT_BROKEN, EXIT_FAILED
from ringmq_node.cli.options import client_options, run
from ringmq_node.cli.output import emit_facts, emit_json, fail

COUNT = 100_000
SIZE_BYTES = 1024
WINDOW = 1000
PREFETCH = 5000


@click.group()
def bench() -> None:
    """Measure a running cluster.

    Without --queue, new queues are made and deleted again.
    """


def _shape_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--queue", "queues", multiple=True, help="An existing queue; repeatable."),
        click.option(
            "--queues",
            "fresh",
            type=click.IntRange(1, 1000),
            default=1,
            show_default=True,
            help="How many new queues.",
        ),
        click.option(
            "--count",
            type=click.IntRange(1),
            help=f"Messages, of all queues together.  [default: {COUNT} without --seconds]",
        ),
        click.option("--size", type=click.IntRange(0), default=SIZE_BYTES, show_default=True),
        click.option("--seconds", type=click.FloatRange(0.1), help="End after this time."),
    )
    for option in reversed(options):
        command = option(command)
    return client_options(command)


_window_option = click.option(
    "--window",
    type=click.IntRange(1),
    default=WINDOW,
    show_default=True,
    help="Unconfirmed messages, per queue.",
)
_batch_option = click.option(
    "--batch",
    type=click.IntRange(1),
    help="Messages handed to the client at a time.  [default: a quarter of the window]",
)
_prefetch_option = click.option(
    "--prefetch",
    type=click.IntRange(1),
    default=PREFETCH,
    show_default=True,
    help="Unacknowledged messages, per queue.",
)


@bench.command("publish")
@_shape_options
@_window_option
@_batch_option
def bench_publish(**options: Any) -> None:
    """Publish with confirms."""
    _bench("publish", **options)


@bench.command("consume")
@_shape_options
@_prefetch_option
def bench_consume(**options: Any) -> None:
    """Consume and acknowledge what is in the queues (new ones are filled before)."""
    _bench("consume", **options)


@bench.command("both")
@_shape_options
@_window_option
@_batch_option
@_prefetch_option
def bench_both(**options: Any) -> None:
    """Publish and consume at the same time, and check that all arrives once, in order."""
    _bench("both", **options)


def _bench(
    kind: Kind,
    *,
    queues: tuple[str, ...],
    fresh: int,
    count: int | None,
    size: int,
    seconds: float | None,
    seeds: str,
    timeout: float,
    as_json: bool,
    window: int = WINDOW,
    batch: int | None = None,
    prefetch: int = PREFETCH,
) -> None:
    if len(set(queues)) < len(queues):
        raise click.UsageError("the same --queue twice")
    if kind == "consume" and not queues and count is None:
        count = COUNT
    if count is None and seconds is None:
        count = COUNT
    settings = Settings(kind, queues, fresh, count, size, window, batch or 0, seconds, prefetch)

    async def work() -> Bench:
        async with ringmq.connect(seeds, deadline_s=timeout) as client:
            done = Bench(client, settings)
            await done.run()
            return done

    try:
        done = run(work())
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    (emit_json if as_json else emit_facts)(done.report())
    if done.failure:
        fail(done.failure)
    if done.broken:
        raise click.exceptions.Exit(EXIT_BROKEN)
    if done.failure:
        raise click.exceptions.Exit(EXIT_FAILED)
