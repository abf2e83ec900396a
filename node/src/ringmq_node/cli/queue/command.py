"""`ringmq queue ...`: the commands that change a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict

import click

from ringmq import Client, QueueMode, QueueRules
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table
from ringmq_node.cli.policy.command import locator_of, locator_type
from ringmq_node.cli.queue.consumers import consumers
from ringmq_node.cli.queue.description import queue_json, ring_text
from ringmq_node.cli.queue.show import list_queues, show
from ringmq_node.cli.queue.verify import verify
from ringmq_node.cli.rules import rule_options

MODES = click.Choice(["default", "lazy"])


@click.group()
def queue() -> None:
    """Declare, look at, change, empty and delete queues."""


@queue.command()
@click.argument("name", default="")
@click.option(
    "--replicas",
    type=click.IntRange(1),
    help="The master included. Default: as many as there are nodes, at most 3.",
)
@click.option(
    "--min-insync",
    type=click.IntRange(1),
    help="Replicas that must have a message on disk before it is confirmed. Default: a majority.",
)
@click.option(
    "--mode",
    "mode_name",
    type=MODES,
    help="default: messages in memory while there is room. lazy: on disk only.",
)
@click.option(
    "--durable/--transient",
    default=None,
    help="transient: nothing is synced, and the queue is gone once all nodes that hold it have "
    "been restarted.  [default: durable]",
)
@click.option(
    "--master-locator",
    type=locator_type,
    help="Where the master goes.  [default: as a policy says, else min-masters]",
)
@rule_options(declared=True)
@click.option(
    "--exclusive",
    is_flag=True,
    default=None,
    help="For this command only: it holds the queue until it is interrupted.",
)
@click.option(
    "--auto-delete",
    is_flag=True,
    default=None,
    help="Deleted when its last consumer has left, once it has had one.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="Refused if the queue was declared with arguments that are left out here.",
)
@client_options
def declare(
    name: str,
    replicas: int | None,
    min_insync: int | None,
    mode_name: str | None,
    durable: bool | None,
    master_locator: str | None,
    rules: QueueRules,
    exclusive: bool | None,
    auto_delete: bool | None,
    exact: bool,
    target: Target,
) -> None:
    """Create the queue NAME, unless it is there with the same arguments.

    Without a NAME the cluster gives it one, and prints it.
    """
    mode = None if mode_name is None else QueueMode[mode_name.upper()]

    async def declared(client: Client) -> None:
        info = await client.declare_queue(
            name,
            replicas or 0,
            min_insync or 0,
            mode=mode,
            durable=durable,
            master_locator=locator_of(master_locator),
            rules=rules,
            exclusive=exclusive,
            auto_delete=auto_delete,
            exact=exact,
        )
        if target.as_json:
            emit_json(queue_json(info))
        else:
            click.echo(f"queue {info.queue}: {info.state.name.lower()}, ring {ring_text(info)}")
        if exclusive:
            await client.wait_disconnected()

    target.run(declared)
    if exclusive:
        raise click.ClickException("the connection was lost, and with it the queue")


@queue.command()
@click.argument("prefix", default="")
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and move nothing.")
@client_options
def rebalance(prefix: str, dry_run: bool, target: Target) -> None:
    """Spread the masters evenly over the nodes; with PREFIX those of queues of the vhost whose
    names begin with it.

    They move to synchronised mirrors, a few at a time. Exit code 1 if one of them didn't.
    """
    moves = target.run(lambda client: client.operator.rebalance(prefix, dry_run=dry_run))
    if target.as_json:
        emit_json([asdict(move) for move in moves])
    else:
        emit_table(
            ("vhost", "queue", "from", "to", "error"),
            (
                (move.vhost, move.queue, move.old_master, move.new_master, move.error)
                for move in moves
            ),
        )
    failed = sum(bool(move.error) for move in moves)
    if failed:
        raise click.ClickException(f"{failed} of {len(moves)} masters did not move")


queue.add_command(list_queues)
queue.add_command(show)
queue.add_command(consumers)
queue.add_command(verify)


@queue.command()
@click.argument("name")
@click.argument("mode_name", metavar="MODE", type=MODES)
@client_options
def mode(name: str, mode_name: str, target: Target) -> None:
    """Switch the queue NAME to the MODE default or lazy, without an interruption."""
    wanted = QueueMode[mode_name.upper()]
    before = target.run(lambda client: client.set_queue_mode(name, wanted)).name.lower()
    if target.as_json:
        emit_json({"queue": name, "before": before, "mode": mode_name})
    else:
        click.echo(f"queue {name}: {before} -> {mode_name}")


@queue.command()
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Refuse if there are messages.")
@click.option("--if-unused", is_flag=True, help="Refuse if there are consumers.")
@click.option(
    "--force", is_flag=True, help="Also without a master, and whatever confirmed messages it has."
)
@client_options
def delete(name: str, if_empty: bool, if_unused: bool, force: bool, target: Target) -> None:
    """Delete the queue NAME and its messages."""
    messages = target.run(
        lambda client: client.delete_queue(
            name, if_empty=if_empty, if_unused=if_unused, force=force
        )
    )
    # A forced delete asks no master, and only a master can count.
    if target.as_json:
        emit_json({"queue": name, "messages": None if force else messages})
    elif force:
        click.echo(f"queue {name}: deleted, with whatever was in it")
    else:
        click.echo(f"queue {name}: deleted, with {messages} messages")


@queue.command()
@click.argument("name")
@client_options
def purge(name: str, target: Target) -> None:
    """Remove the ready messages of the queue NAME."""
    _remove(name, target, lambda client: client.purge_queue(name), "messages removed")


@queue.command()
@click.argument("name")
@click.option("--node", default="", help="Only the replica there.  [default: all that lag]")
@click.option("--cancel", is_flag=True, help="Stop fetching instead.")
@client_options
def sync(name: str, node: str, cancel: bool, target: Target) -> None:
    """Have the replicas of the queue NAME that aren't synchronised fetch what they lack."""
    nodes = target.run(lambda client: client.sync_queue(name, node=node, cancel=cancel))
    if target.as_json:
        emit_json({"queue": name, "nodes": nodes, "cancelled": cancel})
    elif nodes:
        click.echo(f"queue {name}: {'stopped' if cancel else 'fetching'} at {', '.join(nodes)}")
    else:
        click.echo(f"queue {name}: no replica lags")


@queue.command("discard-damaged")
@click.argument("name", metavar="QUEUE")
@client_options
def discard_damaged(name: str, target: Target) -> None:
    """Remove the messages of QUEUE whose bodies are damaged on every replica."""
    _remove(name, target, lambda client: client.discard_damaged(name), "damaged messages discarded")


def _remove(
    name: str, target: Target, work: Callable[[Client], Awaitable[int]], outcome: str
) -> None:
    """Runs `work`, and prints how many messages it has removed."""
    messages = target.run(work)
    if target.as_json:
        emit_json({"queue": name, "messages": messages})
    else:
        click.echo(f"queue {name}: {messages} {outcome}")
