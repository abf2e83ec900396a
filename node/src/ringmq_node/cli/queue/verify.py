"""`ringmq queue verify`: do all replicas have the same messages?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.progress import Progress, TaskID

from ringmq import Client, Difference, ReplicaComparison
from ringmq_node.cli.errors import EXIT_BROKEN
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table, progress_bar, size_text

COLUMNS = ("position", "differs", "replica", "has", "replica", "has")


@click.command()
@click.argument("name")
@click.option(
    "--rate-bytes-max",
    type=click.IntRange(0),
    default=0,
    metavar="BYTES",
    help="Bytes of bodies that each replica reads per second.  [default: as fast as they come]",
)
@client_options
def verify(name: str, rate_bytes_max: int, target: Target) -> None:
    """Compare the synchronised replicas of the queue NAME, message by message, in use.

    Exit code 3 if they differ.
    """
    with progress_bar() as bar:
        task = bar.add_task("comparing", total=None, note="")
        found = target.run(lambda client: _verify(client, name, rate_bytes_max, bar, task))
    if target.as_json:
        emit_json({"queue": name, **comparison_json(found)})
    else:
        click.echo(
            f"queue {name}: {found.messages} messages ({size_text(found.bytes)}) compared on "
            f"{', '.join(found.nodes) or 'no replica'}"
            + (f", not on {', '.join(found.left_out)}" if found.left_out else "")
            + f": {found.differences_total or 'no'} differences"
        )
        if found.differences:
            emit_table(COLUMNS, map(_row, found.differences))
    if found.differences_total:
        raise click.exceptions.Exit(EXIT_BROKEN)


async def _verify(
    client: Client, name: str, rate_bytes_max: int, bar: Progress, task: TaskID
) -> ReplicaComparison:
    def show(progress: ReplicaComparison) -> None:
        bar.update(task, completed=progress.positions, total=progress.positions_total)

    return await client.operator.verify_queue(name, rate_bytes_max=rate_bytes_max, on_progress=show)


def comparison_json(found: ReplicaComparison) -> dict[str, Any]:
    return asdict(found) | {
        "equal": not found.differences_total,
        "differences": [
            asdict(each) | {"kind": each.kind.name.lower()} for each in found.differences
        ],
    }


def _row(each: Difference) -> tuple[object, ...]:
    kind = each.kind.name.lower()
    return each.position, kind, each.node, each.has, each.other, each.other_has
