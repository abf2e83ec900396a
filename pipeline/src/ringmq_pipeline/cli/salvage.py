"""The verb `salvage`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from ringmq_pipeline.cli.common import endpoints_option, spark_options, stores_option
from ringmq_pipeline.cli.errors import EXIT_FOUND
from ringmq_pipeline.summary import print_summary


@click.command()
@stores_option
@click.option("--queue", "queues", default="", help="Only these queues, with commas.")
@click.option("--to", "target", default="", help="The queue for all; by default, each its own.")
@click.option("--vhost", default="", help="Where the queue `--to` is: another vhost than `/`.")
@click.option(
    "--producer-id",
    default="",
    help="By default one for a store, what it has, and target: a repeated attempt is trimmed.",
)
@endpoints_option
@spark_options
def command(
    stores: dict[str, Path],
    queues: str,
    target: str,
    vhost: str,
    producer_id: str,
    endpoints: str,
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """Publishes the messages in the directory of a node that is lost, and not acknowledged there,
    with confirms. Exit code 3 if some can't be read."""
    from ringmq_pipeline.jobs.salvage import fingerprint, publish, salvageable
    from ringmq_pipeline.jobs.scan import counts
    from ringmq_pipeline.jobs.stores import messages_of, pieces_of
    from ringmq_pipeline.session import spark_session

    if len(stores) != 1:
        raise click.UsageError("give one --store: replicas have the same messages")
    if vhost and not target:
        raise click.UsageError("--vhost goes with --to: else each message goes to its own vhost")
    [(node, path)] = stores.items()
    with spark_session("ringmq salvage", master=master, conf=conf) as spark:
        pieces = pieces_of(spark, stores, queues).persist()
        counted = counts(pieces).collect()
        text = f"{node}/{path.absolute()}/{queues}/{vhost}/{target}/{fingerprint(pieces)}"
        producer = producer_id or hashlib.sha256(text.encode()).hexdigest()[:32]
        # One task: the order of each queue is kept.
        rows = messages_of(spark, stores, queues, checksums="false", minPartitions="1")
        publish(salvageable(rows), endpoints, target, producer, vhost or "/")
    lost = sum(row["rows"] for row in counted if row["status"] not in ("ok", "torn"))
    print_summary(
        "salvage",
        messages=sum(row["rows"] for row in counted if row["status"] == "ok"),
        body_bytes=sum(row["body_bytes"] for row in counted if row["status"] == "ok"),
        findings=lost,
        producer=producer,
    )
    return EXIT_FOUND if lost else 0
