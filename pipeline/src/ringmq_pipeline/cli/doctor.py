"""`ringmq-pipeline doctor`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringmq_pipeline.cli.common import LocalPath, endpoints_option, spark_options
from ringmq_pipeline.cli.errors import EXIT_FAILED
from ringmq_pipeline.summary import print_summary

if TYPE_CHECKING:
    from ringmq_pipeline.doctor import Finding


@click.command(name="doctor")
@endpoints_option
@click.option("--queue", "queues", multiple=True, help="A queue to read; may be repeated.")
@click.option("--vhost", default="/", show_default=True, help="Where the queues are.")
@click.option("--lease", default="ingest", show_default=True, help="The lease that is to be free.")
@click.option("--to", "lake", type=LocalPath(), help="The folder of the table to write.")
@click.option("--checkpoint", type=LocalPath(), help="The folder of the checkpoint.")
@click.option("--without-spark", is_flag=True, help="Starts no session, which takes seconds.")
@spark_options
def command(
    endpoints: str,
    queues: tuple[str, ...],
    vhost: str,
    lease: str,
    lake: Path | None,
    checkpoint: Path | None,
    without_spark: bool,
    master: str,
    conf: dict[str, str],
    quiet: bool,
) -> int:
    """Says whether all is there that a pipeline needs, and changes nothing."""
    from ringmq_pipeline.doctor import PipelineParts, examine

    wanted = PipelineParts(
        endpoints=endpoints,
        queues=queues,
        vhost=vhost,
        lease=lease,
        folders=tuple(folder for folder in (lake, checkpoint) if folder is not None),
        master="" if without_spark else master,
        conf=conf,
    )

    def tell(finding: Finding) -> None:
        if not quiet:
            mark = "ok  " if finding.is_fit else "FAIL"
            click.echo(f"{mark}  {finding.check}: {finding.text}", err=True)

    findings = examine(wanted, tell)
    unfit = [finding.check for finding in findings if not finding.is_fit]
    print_summary("doctor", ok=not unfit, unfit=unfit, checks=[asdict(each) for each in findings])
    return EXIT_FAILED if unfit else 0
