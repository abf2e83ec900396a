"""`ringmq cluster up|down|kill|status|connections`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ringmq_gm.registry.base import AddressError
from ringmq_gm.registry.url import open_registry
from ringmq_node.cli.cluster import processes
from ringmq_node.cli.cluster.connections import connections
from ringmq_node.cli.cluster.description import resources_texts, status_json
from ringmq_node.cli.cluster.local import (
    BASE_PORT,
    NODES_MAX,
    STOP_TIMEOUT_S,
    LocalCluster,
    default_directory,
)
from ringmq_node.cli.options import Target, client_options, json_option, run
from ringmq_node.cli.output import emit_json, emit_table, time_text
from ringmq_node.model.names import shown

_data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The cluster's directory. Default: $XDG_STATE_HOME/ringmq/cluster.",
)


STATUS_COLUMNS = (
    *("node", "address", "state", "masters", "mirrors"),
    *("memory", "disk free", "alarms", "version"),
)


@click.group()
def cluster() -> None:
    """A cluster of local processes; the state of any cluster."""


cluster.add_command(connections)


@cluster.command()
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), default=3, show_default=True)
@_data_option
@click.option(
    "--base-port",
    type=click.IntRange(0, 65535 - NODES_MAX),
    help=f"The first node's port, the next has one more. 0: free ones.  [default: {BASE_PORT}]",
)
@click.option("--registry", default="", help="etcd://... Default: a SQLite file in the directory.")
@json_option
def up(nodes: int, data: Path | None, base_port: int | None, registry: str, as_json: bool) -> None:
    """Start node processes that stay, and wait until all see each other.

    Nodes of the same directory that are running already are left alone.
    """
    if registry:
        try:
            open_registry(registry)  # Connects to nothing.
        except AddressError as error:
            raise click.UsageError(str(error)) from error
    local = LocalCluster.create(
        data or default_directory(), nodes=nodes, base_port=base_port, registry=registry
    )
    started = [each.node for each in local.nodes if local.process(each.node) is None]
    for node in started:
        local.start(node)
    try:
        run(local.wait_ready())
    except BaseException:
        # All or nothing; but nodes that ran before this command are not ours to end.
        local.stop_nodes(started)
        raise
    rows = [
        {"node": each.node, "address": each.address, "pid": process.pid if process else 0}
        for each in local.nodes
        for process in [local.process(each.node)]
    ]
    if as_json:
        emit_json({"nodes": rows, "data": str(local.directory), "registry": local.registry})
        return
    emit_table(("node", "address", "pid"), (tuple(row.values()) for row in rows))
    click.echo(f"data in {local.directory}; `ringmq cluster down` ends it")


@cluster.command()
@_data_option
@json_option
def down(data: Path | None, as_json: bool) -> None:
    """End the node processes that `cluster up` started. Data stays."""
    local = LocalCluster.open(data or default_directory())
    stopped, killed = local.stop()
    if as_json:
        emit_json({"stopped": stopped, "killed": killed, "data": str(local.directory)})
        return
    click.echo(f"{len(stopped)} nodes ended" + (f", {len(killed)} killed" if killed else ""))


@cluster.command()
@click.argument("node", metavar="NODE")
@_data_option
@json_option
def kill(node: str, data: Path | None, as_json: bool) -> None:
    """Kill a node that `cluster up` started: it hands nothing over, as if its machine had failed.

    NODE is its name or its address. `cluster up` starts it again.
    """
    local = LocalCluster.open(data or default_directory())
    found = local.named(node)
    process = local.kill(found)
    if process is not None:
        processes.wait_ended([process], STOP_TIMEOUT_S)
    if as_json:
        emit_json({"node": found, "killed": process is not None})
        return
    click.echo(f"{found} was down already" if process is None else f"{found} is killed")


@cluster.command()
@_data_option
@client_options
def status(data: Path | None, target: Target) -> None:
    """The nodes, as one of them sees them. With --data, those of a local cluster."""
    if data is not None:
        target = replace(target, seeds=LocalCluster.open(data).seeds)
    found = target.run(lambda client: client.cluster_status(with_resources=True))
    if target.as_json:
        emit_json(status_json(found))
        return
    emit_table(
        STATUS_COLUMNS,
        (
            (
                each.node,
                each.address,
                each.state.name.lower(),
                each.masters,
                each.mirrors,
                *resources_texts(each.resources),
                each.version,
            )
            for each in found.nodes
        ),
    )
    for each in found.nodes:
        if each.quarantine:
            click.echo(f"node {each.node} is quarantined: {each.quarantine}", err=True)
        for left in () if each.resources is None else each.resources.leftovers:
            click.echo(
                f"node {each.node} keeps a leftover replica of queue {shown(left.queue)} "
                f"({left.id}) with "
                f"{left.messages} messages until {time_text(left.removed_at_s)}",
                err=True,
            )
        for cut in () if each.resources is None else each.resources.set_aside:
            known = "were" if cut.confirmed else "may have been"
            click.echo(
                f"node {each.node} has set aside {cut.messages} messages of queue "
                f"{shown(cut.queue)} as {cut.name}, which {known} confirmed, until "
                f"{time_text(cut.removed_at_s)}",
                err=True,
            )
    registry = "available" if found.registry_available else "not available"
    click.echo(f"cluster {found.cluster_id}, {found.queues} queues, registry {registry}")
