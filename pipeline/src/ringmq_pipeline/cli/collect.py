"""The verb `collect`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ringmq_pipeline.cli.common import LocalPath, Progress, endpoints_option
from ringmq_pipeline.cli.errors import EXIT_FAILED
from ringmq_pipeline.option_values import duration
from ringmq_pipeline.summary import print_summary


@click.command()
@endpoints_option
@click.option("--vhost", default="", help="Another vhost than `/`.")
@click.option("--to", type=LocalPath(), required=True, help="The archive's folder.")
@click.option("--every", default="10s", show_default=True, metavar="TIME", help="Between samples.")
@click.option("--for", "lasts", metavar="TIME", help="How long; by default until Ctrl-C.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    endpoints: str, vhost: str, to: Path, every: str, lasts: str | None, quiet: bool
) -> int:
    """Samples the statistics of all queues into an archive for `rollup`. Starts no Spark.

    A round in which no node answers is counted, and the next one tries again."""
    import ringmq
    from ringmq_pipeline.samples import collect

    progress = Progress(quiet=quiet)
    every_s = duration("every", every)
    for_s = None if lasts is None else duration("for", lasts)
    last_line = 0

    def told(lines: int, error: str) -> None:
        nonlocal last_line
        last_line = lines
        progress.show(f"{lines} samples" + (f"; {error}" if error else ""))

    with ringmq.connect_sync(endpoints, deadline_s=max(every_s, 5.0), vhost=vhost) as client:
        rounds, failed = collect(
            to,
            client.queues,
            every_s=every_s,
            for_s=for_s,
            clock=time.time,
            sleep=time.sleep,
            told=told,
        )
    progress.end()
    print_summary("collect", rounds=rounds, rounds_failed=failed, samples=last_line)
    return 0 if rounds else EXIT_FAILED
