"""The verb `replay`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringmq_pipeline.cli.common import (
    LocalPath,
    Progress,
    endpoints_option,
    pairs,
    spark_options,
)
from ringmq_pipeline.option_values import OptionError
from ringmq_pipeline.summary import print_summary

if TYPE_CHECKING:
    from ringmq_pipeline.jobs.replay import ReplayTally

# Units at a time, where no order is asked for.
PARALLEL = 4


@click.command()
@click.option(
    "--from",
    "source",
    type=LocalPath(exists=True),
    required=True,
    help="A Delta table, a table with manifests, or Parquet files; with a column `body`.",
)
@click.option("--queue", default="", help="Where all go; by default, the column `queue` says it.")
@endpoints_option
@click.option(
    "--progress",
    "noted",
    type=LocalPath(),
    required=True,
    help="The file that says what is confirmed.",
)
@click.option(
    "--resume", is_flag=True, help="Go on where the progress file ends: it has to be there."
)
@click.option(
    "--where",
    default="",
    metavar="SQL",
    help="Only rows for which this holds; not of the time of the run.",
)
@click.option("--rate", type=click.IntRange(min=1), help="Messages a second, at most.")
@click.option(
    "--ordering",
    type=click.Choice(["queue", "none"]),
    default="queue",
    show_default=True,
    help="`queue`: as in the table, for each queue; `none`: several files at a time.",
)
@click.option(
    "--producer-id",
    default="",
    help="Rows that this producer has published from the same files already are trimmed.",
)
@click.option(
    "--option",
    "sink",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="An option of the sink; may be repeated.",
)
@spark_options
def command(
    source: Path,
    queue: str,
    endpoints: str,
    noted: Path,
    resume: bool,
    where: str,
    rate: int | None,
    ordering: str,
    producer_id: str,
    sink: dict[str, str],
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> None:
    """Rows of a table to queues, confirmed, each one once."""
    from ringmq_pipeline.jobs.replay import ReplayJob, replay
    from ringmq_pipeline.session import spark_session

    for name in sink:
        if name.lower() in ("producerid", "producercolumn"):
            raise OptionError(name, "a replay names its producers itself: give --producer-id")
    parallel = 1 if ordering == "queue" else PARALLEL
    options = {"endpoints": endpoints} | ({"queue": queue} if queue else {}) | sink
    if rate is not None:
        # A unit is one task, and each has a share: of less than one message a second, none would.
        parallel = min(parallel, rate)
        options["maxRatePerTask"] = str(rate // parallel)
    job = ReplayJob(source, options, noted, where, producer_id, resume, parallel)
    began = time.monotonic()
    progress = Progress(quiet=quiet)

    def show(tally: ReplayTally, units: int) -> None:
        done = tally.units + tally.units_skipped
        progress.show(f"{tally.rows} rows, {done} of {units} parts of the table")

    with spark_session("ringmq replay", master=master, conf=conf) as spark:
        try:
            tally = replay(spark, job, show=show)
        finally:
            progress.end()
    print_summary(
        "replay",
        rows=tally.rows,
        units=tally.units,
        units_skipped=tally.units_skipped,
        producer=tally.producer,
        seconds=round(time.monotonic() - began, 3),
    )
