"""`ringmq node list|drain|revive|forget`: the nodes of any cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import click

from ringmq import Client, NodeInfo, NodeState
from ringmq_node.cli.options import NumberRange, Target, client_options
from ringmq_node.cli.output import emit_json, emit_table

COLUMNS = ("node", "state", "masters", "mirrors", "needed by", "address", "version")
WAIT_S = 60.0
POLL_S = 0.2


def _json(node: NodeInfo) -> dict[str, Any]:
    return {
        "node": node.node,
        "state": node.state.name.lower(),
        "drained": node.drained,
        "evacuated": node.evacuated,
        "masters": node.masters,
        "mirrors": node.mirrors,
        "queues_needing": node.queues_needing,
        "address": node.address,
        "version": node.version,
    }


def _state(node: NodeInfo) -> str:
    if node.state is NodeState.DRAINING:
        return "evacuated" if node.evacuated else "drained"
    return node.state.name.lower()


@click.command("list")
@client_options
def list_nodes(target: Target) -> None:
    """The nodes that belong to the cluster, up or down.

    "needed by": queues that would have too few synchronised replicas without the node.
    """
    found = target.run(lambda client: client.cluster_status(with_queues_needing=True))
    if target.as_json:
        emit_json([_json(each) for each in found.nodes])
        return
    emit_table(
        COLUMNS,
        (
            (
                each.node,
                _state(each),
                each.masters,
                each.mirrors,
                each.queues_needing,
                each.address,
                each.version,
            )
            for each in found.nodes
        ),
    )


@click.command()
@click.argument("name", metavar="NODE")
@click.option("--evacuate", is_flag=True, help="Its replicas go to other nodes, too.")
@click.option(
    "--wait",
    "wait_s",
    type=NumberRange(0),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the node can be stopped. 0: not at all.",
)
@client_options
def drain(name: str, evacuate: bool, wait_s: float, target: Target) -> None:
    """Have NODE give its masters away, before it is stopped.

    It gets no master and no further replica until it is revived, also over restarts. Exit code 1 if
    the node has a master, or a queue needs it, when the time is up.
    """
    left = target.run(lambda client: _drain(client, name, evacuate, wait_s))
    done = _is_done(left, evacuate)
    if target.as_json:
        emit_json(_json(left) | {"done": done})
    elif done:
        click.echo(f"node {name}: {'evacuated' if evacuate else 'drained'}")
    if not done and wait_s:
        raise click.ClickException(
            f"node {name}: {left.masters} masters, {left.mirrors} mirrors, and "
            f"{left.queues_needing} queues that need it, after {wait_s:g} s"
        )
    if not done and not target.as_json:
        click.echo(f"node {name}: to be {'evacuated' if evacuate else 'drained'}")


async def _drain(client: Client, name: str, evacuate: bool, wait_s: float) -> NodeInfo:
    """The node when it is done, or the time is up."""
    await client.operator.drain(name, evacuate=evacuate)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        status = await client.cluster_status(with_queues_needing=True)
        node = next((each for each in status.nodes if each.node == name), None)
        # The node that answers may not have heard of the drain yet.
        if node is not None and node.drained and _is_done(node, evacuate):
            return node
        if loop.time() >= deadline:
            if node is None:
                raise click.ClickException(f"node {name}: forgotten meanwhile")
            return node
        await asyncio.sleep(POLL_S)


def _is_done(node: NodeInfo, evacuate: bool) -> bool:
    return not (node.masters or node.queues_needing or (evacuate and node.mirrors))


@click.command()
@click.argument("name", metavar="NODE")
@client_options
def revive(name: str, target: Target) -> None:
    """Let NODE have masters and replicas again."""
    _tell(target, name, lambda client: client.operator.revive(name), "revived")


@click.command()
@click.argument("name", metavar="NODE")
@client_options
def forget(name: str, target: Target) -> None:
    """Go on without NODE, which is down and will not come back, and without its disk."""
    _tell(target, name, lambda client: client.operator.forget(name), "forgotten")


def _tell(target: Target, name: str, work: Callable[[Client], Any], outcome: str) -> None:
    target.run(work)
    if target.as_json:
        emit_json({"node": name, "done": True})
    else:
        click.echo(f"node {name}: {outcome}")
