"""The verb `rollup`."""

from __future__ import annotations

from pathlib import Path

import click

from ringmq_pipeline.cli.common import LocalPath, Progress, spark_options
from ringmq_pipeline.errors import JobError
from ringmq_pipeline.option_values import duration
from ringmq_pipeline.summary import print_summary

CHARTS = (".png", ".html", ".svg")
# Of the rows that a chart is drawn from: a year of a hundred queues.
ROWS_MAX = 1_000_000


def _charts(
    context: click.Context, parameter: click.Parameter, values: tuple[Path, ...]
) -> tuple[Path, ...]:
    for value in values:
        if value.suffix not in CHARTS:
            raise click.BadParameter(f"{value} is none of {', '.join(CHARTS)}", context, parameter)
    return values


@click.command()
@click.option(
    "--metrics",
    multiple=True,
    required=True,
    metavar="PATH",
    help="An archive of `collect`, or files of one; may be repeated.",
)
@click.option("--to", type=LocalPath(), help="A folder for the rows as Parquet.")
@click.option(
    "--chart",
    "charts",
    multiple=True,
    callback=_charts,
    type=LocalPath(),
    help="A file .png, .svg or .html; may be repeated.",
)
@click.option(
    "--gap", default="10m", show_default=True, help="Samples further apart say nothing of between."
)
@spark_options
def command(
    metrics: tuple[str, ...],
    to: Path | None,
    charts: tuple[Path, ...],
    gap: str,
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """Rates, depths, redelivery and time to drain, by queue and hour, from archived samples."""
    from pyspark.sql import functions as f

    from ringmq_pipeline.jobs.rollup import read_samples, rollup
    from ringmq_pipeline.session import spark_session

    gap_s = duration("gap", gap)
    progress = Progress(quiet=quiet)
    progress.show("starting Spark")
    with spark_session("ringmq rollup", master=master, conf=conf) as spark:
        progress.show("rolling up")
        rolled = rollup(read_samples(spark, metrics), gap_s=gap_s).persist()
        if to is not None:
            rolled.write.mode("errorifexists").parquet(str(to))
        amounts = ("samples", "published", "delivered", "redelivered", "acked", "failovers")
        sums = (f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in amounts)
        total = rolled.agg(
            f.count("*").alias("rows"), f.countDistinct("vhost", "queue").alias("queues"), *sums
        ).collect()[0]
        if not total["rows"]:
            raise JobError(f"{', '.join(metrics)}: no samples there")
        if charts:
            newest = rolled.orderBy(f.desc("hour")).limit(ROWS_MAX)
            rows = [each.asDict() for each in newest.orderBy("hour", "vhost", "queue").collect()]
    progress.end()
    if charts:
        from ringmq_pipeline.chart import save

        for path in charts:
            save(path, rows)
    print_summary("rollup", **total.asDict(), charts=[str(path) for path in charts])
    return 0
