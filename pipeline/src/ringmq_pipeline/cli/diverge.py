"""The verb `diverge`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from ringmq_pipeline.cli.common import LocalPath, spark_options, stores_option
from ringmq_pipeline.cli.errors import EXIT_FAILED, EXIT_FOUND
from ringmq_pipeline.summary import print_summary

# Of differences on stderr; all are counted.
SHOWN_MAX = 1000


@click.command()
@stores_option
@click.option("--queue", "queues", default="", help="Only these queues, with commas.")
@click.option("--to", type=LocalPath(), help="A folder for all differences as Parquet.")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    help="How many of these nodes have each queue; by default all.",
)
@spark_options
def command(
    stores: dict[str, Path],
    queues: str,
    replicas: int | None,
    to: Path | None,
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """Whether the replicas of each queue have the same messages, by the directories of stopped
    nodes. Exit code 3 if they differ, 1 if a queue can't be read, or its logs can't tell."""
    from ringmq_pipeline.jobs.diverge import (
        DIVERGENT,
        UNCERTAIN,
        absent_replicas,
        differences,
        logs_by_queue,
        replicas_frame,
        torn_tails,
    )
    from ringmq_pipeline.jobs.stores import messages_of, queues_of
    from ringmq_pipeline.session import spark_session

    if len(stores) < 2:
        raise click.UsageError("give the directories of two nodes or more, --store NAME=DIR each")
    with spark_session("ringmq diverge", master=master, conf=conf) as spark:
        known = queues_of(spark, stores, queues).collect()
        logs = logs_by_queue(known)
        messages = messages_of(spark, stores, queues, payload="none")
        found = differences(messages, replicas_frame(spark, logs)).cache()
        if to is not None:
            found.write.mode("errorifexists").parquet(str(to))
        kinds = Counter(
            {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        )
        told = found.where(found["kind"].isin(*DIVERGENT, UNCERTAIN))
        shown = (
            [] if quiet else told.orderBy("queue", "position", "node").limit(SHOWN_MAX).collect()
        )
        torn = torn_tails(spark, stores, known)
    absent = absent_replicas(known, [*stores], replicas or 0)
    findings = [
        *({"kind": "absent_replica", **asdict(each)} for each in absent),
        *torn,
        *(row.asDict() for row in shown),
    ]
    for finding in [] if quiet else findings:
        click.echo(json.dumps(finding), err=True)
    unreadable = [f"{row['node']}: {row['queue']}" for row in known if row["status"] != "ok"]
    divergent = sum(kinds[kind] for kind in DIVERGENT)
    print_summary(
        "diverge",
        queues=len(logs),
        divergent=divergent,
        uncertain=kinds[UNCERTAIN],
        differences=dict(kinds),
        absent_replicas=[f"{each.node}: {each.queue}" for each in absent],
        torn_bytes=sum(row["torn_bytes"] for row in known),
        torn=[f"{each['node']}: {each['file']}" for each in torn],
        damaged=[f"{row['node']}: {row['queue']}" for row in known if row["damaged"]],
        unreadable=unreadable,
    )
    if unreadable:
        return EXIT_FAILED
    if divergent or absent:
        return EXIT_FOUND
    return EXIT_FAILED if kinds[UNCERTAIN] else 0
