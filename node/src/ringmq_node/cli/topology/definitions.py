"""`ringmq definitions ...`: everything that is declared, as one JSON document."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from ringmq_node.cli.errors import EXIT_FAILED
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json


class NodeMapping(click.ParamType[tuple[str, str]]):
    name = "OLD=NEW"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        old, _, new = str(value).partition("=")
        if not old or not new:
            raise click.BadParameter(f"{value!r} is not OLD=NEW", ctx, param)
        return old, new


@click.group()
def definitions() -> None:
    """Export and import vhosts, exchanges, queues, bindings and policies."""


@definitions.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@client_options
def export_definitions(file: Path | None, target: Target) -> None:
    """Write the definitions to FILE, or to stdout."""
    document = target.run(lambda client: client.topology.export_definitions())
    if file is None:
        sys.stdout.write(document.decode() + "\n")
    else:
        file.write_bytes(document + b"\n")


@definitions.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option(
    "--node",
    "nodes",
    type=NodeMapping(),
    multiple=True,
    help="Which node of this cluster (NEW) is meant by a policy's rabbit@old (OLD). Repeatable.",
)
@client_options
def import_definitions(file: Path, nodes: tuple[tuple[str, str], ...], target: Target) -> int:
    """Declare what FILE has and isn't there; `-` is stdin.

    FILE is an export of ours, or a definitions.json of RabbitMQ 3.x. Entries that name no vhost, as
    in RabbitMQ's export of one, go to that of --vhost. What can't be mapped or is refused is told
    on stderr; if something is refused, the exit code is 1.
    """
    for old, times in Counter(old for old, _ in nodes).items():
        if times > 1:
            raise click.UsageError(f"--node: {old!r} is mapped twice")
    if str(file) == "-":
        document = sys.stdin.buffer.read()
    else:
        document = file.read_bytes()
    done = target.run(
        lambda client: client.topology.import_definitions(document, nodes=dict(nodes))
    )
    if target.as_json:
        emit_json(
            {
                "created": done.created,
                "existing": done.existing,
                "unmapped": list(done.unmapped),
                "failed": list(done.failed),
            }
        )
    else:
        click.echo(f"{done.created} created, {done.existing} there already")
        for line in done.unmapped:
            click.echo(f"not mapped: {line}", err=True)
        for line in done.failed:
            click.echo(f"refused: {line}", err=True)
    return EXIT_FAILED if done.failed else 0
