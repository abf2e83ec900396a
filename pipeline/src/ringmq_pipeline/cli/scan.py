"""The verb `scan`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ringmq_pipeline.cli.common import LocalPath, spark_options, stores_option
from ringmq_pipeline.cli.errors import EXIT_FOUND
from ringmq_pipeline.summary import print_summary

# Of findings in the summary; all are counted.
FINDINGS_MAX = 100


@click.command()
@stores_option
@click.option("--queue", "queues", default="", help="Only these queues, with commas.")
@click.option("--payload", default="none", show_default=True, help="none, head:N or full.")
@click.option("--to", type=LocalPath(), help="A folder for all rows as Parquet; not there yet.")
@spark_options
def command(
    stores: dict[str, Path],
    queues: str,
    payload: str,
    to: Path | None,
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """What is in the directories of stopped nodes, and what is damaged there. Reads only."""
    from ringmq_pipeline.jobs.scan import counts, findings
    from ringmq_pipeline.jobs.stores import messages_of, pieces_of
    from ringmq_pipeline.session import spark_session

    with spark_session("ringmq scan", master=master, conf=conf) as spark:
        if to is not None:
            rows = messages_of(spark, stores, queues, payload=payload)
            rows.write.mode("errorifexists").parquet(str(to))
        looked_at = pieces_of(spark, stores, queues)
        counted = [row.asDict() for row in counts(looked_at).orderBy("node", "queue").collect()]
        bad = sum(row["rows"] for row in counted if row["status"] not in ("ok", "torn"))
        shown = findings(looked_at).limit(FINDINGS_MAX).collect() if bad else []
    for finding in shown if not quiet else ():
        click.echo(json.dumps(finding.asDict()), err=True)
    print_summary(
        "scan",
        messages=sum(row["rows"] for row in counted if row["status"] == "ok"),
        findings=bad,
        torn_tails=sum(row["rows"] for row in counted if row["status"] == "torn"),
        queues=counted,
    )
    return EXIT_FOUND if bad else 0
