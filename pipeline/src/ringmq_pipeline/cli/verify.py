"""The verb `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ringmq_pipeline.cli.common import LocalPath, Progress, spark_options
from ringmq_pipeline.cli.errors import EXIT_FAILED, EXIT_FOUND
from ringmq_pipeline.errors import JobError
from ringmq_pipeline.summary import print_summary

# Of runs with violations, by name in the summary; all are counted.
RUNS_MAX = 100


@click.command()
@click.option(
    "--history",
    "histories",
    multiple=True,
    required=True,
    metavar="PATH",
    help="A file, a folder, or a pattern such as '/runs/*/history.jsonl'; may be repeated.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "parquet"]),
    default="json",
    show_default=True,
    help="Of the histories: lines of JSON, or the same columns as Parquet.",
)
@click.option("--strangers", is_flag=True, help="Some publishers are not in the histories.")
@click.option("--to", type=LocalPath(), help="A folder for all findings as Parquet; not there.")
@click.option("--show", default=20, show_default=True, help="How many findings to print.")
@spark_options
def command(
    histories: tuple[str, ...],
    form: str,
    strangers: bool,
    to: Path | None,
    show: int,
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """Whether the histories of runs keep what the cluster promises. Exit code 3 if they don't, 1 if
    a line is no record."""
    from pyspark import StorageLevel

    from ringmq_pipeline.jobs.histories import read_histories
    from ringmq_pipeline.jobs.verify import RULES, findings, verdict_of, verdicts
    from ringmq_pipeline.session import spark_session

    progress = Progress(quiet=quiet)
    progress.show("starting Spark")
    with spark_session("ringmq verify", master=master, conf=conf) as spark:
        progress.show("reading and judging")
        # Read once, and then by each part of the judgement.
        records = read_histories(spark, histories, form).persist(StorageLevel.DISK_ONLY)
        judged = verdicts(records, strangers=strangers).persist(StorageLevel.DISK_ONLY)
        verdict = verdict_of(judged, RUNS_MAX)
        if not verdict.records:
            raise JobError(f"{', '.join(histories)}: no records there")
        shown = []
        if verdict.violations:
            progress.show("looking up the findings")
            found = findings(records, strangers=strangers, rules=tuple(verdict.violations))
            if to is not None:
                found.write.mode("errorifexists").parquet(str(to))
                found = spark.read.parquet(str(to))
            shown = found.orderBy("run", "queue", "at", "rule", "what").limit(show).collect()
        elif to is not None:
            findings(records.limit(0)).write.mode("errorifexists").parquet(str(to))
        bad = records.where("kind = 'unreadable'").select("run", "reason").limit(show)
        unreadable = bad.collect() if verdict.totals["unreadable"] else []
    progress.end()
    for row in (*unreadable, *shown) if not quiet else ():
        click.echo(json.dumps(row.asDict()), err=True)
    print_summary(
        "verify",
        runs=verdict.runs,
        records=verdict.records,
        **verdict.totals,
        violations={RULES[rule]: count for rule, count in verdict.violations.items()},
        broken_runs=verdict.broken_runs,
    )
    if verdict.totals["unreadable"]:
        return EXIT_FAILED
    return EXIT_FOUND if verdict.violations else 0
