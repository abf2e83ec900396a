"""`ringmq promote`: another master for a queue, and the way out when its messages may be lost."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import asdict
from typing import Any

import click

from ringmq import MessagesMayBeLostError
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table

REPLICA_COLUMNS = (
    *("replica", "standing", "answers", "log whole", "log epoch", "last op", "stable"),
    *("messages", "without body", "next position"),
)


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("node")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on with what NODE has, if no replica that has everything can come back. Whatever "
    "else was confirmed is lost: before, and by a master that still runs, cut off, until it hears "
    "of this.",
)
@click.option(
    "--operator",
    default="",
    metavar="TEXT",
    help="Who accepts the loss, for the queue's record.  [default: user@host]",
)
@client_options
def promote(name: str, node: str, accept_loss: bool, operator: str, target: Target) -> None:
    """Make NODE's mirror the master of QUEUE: nothing is lost or enqueued twice."""
    try:
        done = target.run(
            lambda client: client.promote_mirror(
                name, node, accept_loss=accept_loss, operator=operator or _operator()
            )
        )
    except MessagesMayBeLostError as error:
        # The line on stderr says why. Whoever has to decide wants to see it replica by replica.
        _emit_replicas(name, error.replicas, as_json=target.as_json)
        raise
    if target.as_json:
        emit_json({"queue": name, **asdict(done)})
        return
    if done.old_master == done.new_master and done.loss is None:
        click.echo(f"queue {name}: {done.new_master} is the master already, epoch {done.epoch}")
        return
    click.echo(
        f"queue {name}: {done.old_master} -> {done.new_master}, "
        f"epoch {done.epoch}, {done.took_ms} ms"
    )
    if done.loss is not None:
        click.echo(
            f"queue {name}: goes on after op {done.loss.log_number} of epoch "
            f"{done.loss.log_epoch}, with position {done.loss.position}; overruled: "
            f"{', '.join(done.loss.overruled) or 'nobody'}"
        )


def _emit_replicas(name: str, replicas: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        emit_json({"queue": name, "replicas": replicas})
        return
    emit_table(
        REPLICA_COLUMNS,
        (
            (
                each["node"],
                each["standing"],
                "yes" if each["is_up"] else "no",
                "yes" if each["log_is_whole"] else "no",
                each["log_epoch"],
                each["last_number"],
                each["stable"],
                each["messages"],
                each["messages_missing"],
                each["next_position"],
            )
            for each in replicas
        ),
    )


def _operator() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # In a container, the user of this process may have no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
