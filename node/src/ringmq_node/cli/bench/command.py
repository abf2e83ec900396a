"""`ringmq bench publish|consume|both`: the options, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ringmq import Client
from ringmq_node.cli.bench.measured import BenchKind, BenchSettings
from ringmq_node.cli.bench.run import BenchRun, UnfitQueueError
from ringmq_node.cli.errors import EXIT_BROKEN, EXIT_FAILED
from ringmq_node.cli.options import NumberRange, Target, client_options
from ringmq_node.cli.output import emit_report, fail

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
        click.option(
            "--size", "size_bytes", type=click.IntRange(0), default=SIZE_BYTES, show_default=True
        ),
        click.option("--seconds", type=NumberRange(0.1), help="End after this time."),
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
    _bench(BenchKind.PUBLISH, **options)


@bench.command("consume")
@_shape_options
@_prefetch_option
def bench_consume(**options: Any) -> None:
    """Consume and acknowledge the messages of the queues (new queues are filled before)."""
    _bench(BenchKind.CONSUME, **options)


@bench.command("both")
@_shape_options
@_window_option
@_batch_option
@_prefetch_option
def bench_both(**options: Any) -> None:
    """Publish and consume at the same time, and check that all arrives once, in order."""
    _bench(BenchKind.BOTH, **options)


def _bench(
    kind: BenchKind,
    *,
    queues: tuple[str, ...],
    fresh: int,
    count: int | None,
    size_bytes: int,
    seconds: float | None,
    target: Target,
    window: int = WINDOW,
    batch: int | None = None,
    prefetch: int = PREFETCH,
) -> None:
    if len(set(queues)) < len(queues):
        raise click.UsageError("the same --queue twice: each queue is measured once")
    # New queues are filled before they are consumed: that takes a number of messages even
    # if consuming ends by the clock.
    fills_first = kind is BenchKind.CONSUME and not queues
    if count is None and (seconds is None or fills_first):
        count = COUNT
    settings = BenchSettings(
        kind, queues, fresh, count, size_bytes, window, batch or 0, seconds, prefetch
    )

    async def work(client: Client) -> BenchRun:
        done = BenchRun(client, settings)
        await done.run()
        return done

    try:
        done = target.run(work)
    except UnfitQueueError as error:
        raise click.ClickException(str(error)) from error
    emit_report(done.report(), as_json=target.as_json)
    if done.failure:
        fail(done.failure)
    if done.broken:
        raise click.exceptions.Exit(EXIT_BROKEN)
    if done.failure:
        raise click.exceptions.Exit(EXIT_FAILED)
