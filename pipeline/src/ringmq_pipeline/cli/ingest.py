"""The verb `ingest`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from ringmq_pipeline.cli.common import LocalPath, Progress, endpoints_option, pairs, spark_options
from ringmq_pipeline.cli.errors import EXIT_INTERRUPTED
from ringmq_pipeline.leases import check_leases
from ringmq_pipeline.option_values import OptionError, duration
from ringmq_pipeline.options import parse
from ringmq_pipeline.summary import print_summary

if TYPE_CHECKING:
    from ringmq_pipeline.jobs.ingest import IngestTally

ASYNC_PROGRESS = "asyncprogresstracking"


@click.command()
@click.option("--queue", required=True, help="The queue, or several with commas.")
@endpoints_option
@click.option("--to", type=LocalPath(), required=True, help="The table's folder.")
@click.option(
    "--format", "kind", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True
)
@click.option(
    "--checkpoint",
    type=LocalPath(),
    required=True,
    help="The folder that says how far this ingest has come. One for each table.",
)
@click.option("--once", is_flag=True, help="What is there now, and then end. This is the default.")
@click.option("--every", metavar="TIME", help="Go on, with a batch every 5s, for example.")
@click.option(
    "--decode",
    type=click.Choice(["none", "text", "json"]),
    default="none",
    show_default=True,
    help="Adds the column `value`.",
)
@click.option("--value-schema", default="", metavar="DDL", help="Of JSON objects: 'a INT, ...'.")
@click.option(
    "--quarantine",
    type=LocalPath(),
    help="The table of messages that can't be decoded.",
)
@click.option(
    "--dedupe-window",
    default="",
    metavar="TIME",
    help="Of messages with the same id within it, keep the first: '1 hour', for example.",
)
@click.option(
    "--option",
    "source",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="An option of the source; may be repeated.",
)
@spark_options
def command(
    queue: str,
    endpoints: str,
    to: Path,
    kind: str,
    checkpoint: Path,
    once: bool,
    every: str | None,
    decode: str,
    value_schema: str,
    quarantine: Path | None,
    dedupe_window: str,
    source: dict[str, str],
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """Messages from queues to a table, each one once.

    They leave the queue when the table has them for good."""
    _check(once, every, decode, value_schema, source | conf, quarantine=quarantine is not None)
    _check_folders(to, checkpoint, quarantine)
    settings = {"endpoints": endpoints, "queues": queue} | source
    # Spark takes seconds to start.
    check_leases(parse(settings))
    from ringmq_pipeline.jobs.decoding import Decoding
    from ringmq_pipeline.jobs.ingest import Ingest, ingest
    from ringmq_pipeline.session import spark_session
    from ringmq_pipeline.sinks import sink_for

    job = Ingest(
        source=settings,
        table=sink_for(kind, to),
        checkpoint=checkpoint,
        every_s=None if every is None else duration("every", every),
        decoding=Decoding(decode),
        value_schema=value_schema,
        quarantine=None if quarantine is None else sink_for(kind, quarantine),
        dedupe_window=dedupe_window,
        table_folder=to,
    )
    began, progress = time.monotonic(), Progress(quiet=quiet)
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    def show(tally: IngestTally) -> None:
        rate = tally.rows / (time.monotonic() - began)
        progress.show(f"{tally.rows} rows, {rate:.0f}/s, {tally.lag} behind")

    with spark_session("ringmq ingest", master=master, conf=conf) as spark:
        # Spark's own handlers end the JVM under the query.
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            tally = ingest(spark, job, show=show, ends=lambda: asked)
        finally:
            progress.end()
            for number, handler in before.items():
                signal.signal(number, handler)
    _sum_up(tally, time.monotonic() - began)
    return EXIT_INTERRUPTED if tally.is_interrupted else 0


def _sum_up(tally: IngestTally, took_s: float) -> None:
    print_summary(
        "ingest",
        rows=tally.rows,
        bytes=tally.bytes,
        batches=tally.batches,
        batches_skipped=tally.batches_skipped,
        rows_quarantined=tally.rows_quarantined,
        # Before the first batch, nobody has counted.
        lag=None if tally.is_interrupted and not tally.batches else tally.lag,
        ends=tally.ends,
        seconds=round(took_s, 3),
    )


def _check(
    once: bool,
    every: str | None,
    decode: str,
    value_schema: str,
    settings: dict[str, str],
    *,
    quarantine: bool,
) -> None:
    if once and every is not None:
        raise click.UsageError("--once ends, and --every goes on: give one of them")
    if (decode == "none") == quarantine:
        raise click.UsageError("--decode and --quarantine belong together: bad bodies go there")
    if value_schema and decode != "json":
        raise click.UsageError("--value-schema is of --decode json")
    for name in settings:
        if ASYNC_PROGRESS in name.lower():
            raise OptionError(
                name, "with it, Spark notes a batch as done before it is: messages would be lost"
            )


def _check_folders(to: Path, checkpoint: Path, quarantine: Path | None) -> None:
    if quarantine is not None and quarantine.resolve() == to.resolve():
        raise click.UsageError(
            "--quarantine is the table of --to: only one of the two would be kept"
        )
    folders = {"--to": to, "--quarantine": quarantine, "--checkpoint": checkpoint}
    for table in ("--to", "--quarantine"):
        for name, folder in folders.items():
            if name != table and _belongs_to(folders[table], folder):
                raise click.UsageError(
                    f"{name} is in the folder of {table}: a vacuum of that table would delete it. "
                    "Give it a folder beside the table, or one there whose name begins with _"
                )


def _belongs_to(table: Path | None, folder: Path | None) -> bool:
    """Whether the table's own cleaning takes the folder for one of its own."""
    if table is None or folder is None or not folder.resolve().is_relative_to(table.resolve()):
        return False
    below = folder.resolve().relative_to(table.resolve()).parts
    return not below or not below[0].startswith("_")
