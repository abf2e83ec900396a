"""`ringmq node ...`: a node in this process, and the nodes of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import click

from ringmq_base.logs import LOG_FORMAT
from ringmq_node.cli.cluster.nodes import drain, forget, list_nodes, revive
from ringmq_node.cli.options import json_option
from ringmq_node.cli.output import emit_json
from ringmq_node.config import ConfigError, NodeConfig, load_config
from ringmq_node.model.names import shown_text

if TYPE_CHECKING:
    from ringmq_node.node import Node

_HELP = {
    "node": "This node's name, unique in the cluster.",
    "registry": "sqlite:///path/to/file or etcd://host:port,host:port/prefix.",
    "data": "The data directory; it belongs to this node alone.",
    "listen": "HOST:PORT to serve on; port 0 takes a free one.",
    "advertise": "HOST:PORT under which others find this node; default: as listened to. "
    "Needed if that is every interface, and there are others.",
    "cluster": "The cluster's name.",
    "cluster_secret": "What the nodes have in common. Better set as RINGMQ_CLUSTER_SECRET.",
    "message_bytes_max": "The largest message.",
    "properties_bytes_max": "The largest properties of a message, encoded.",
    "ring_timeout_s": "Silence after which a neighbour in the ring counts as dead.",
    "slow_timeout_s": "A mirror that takes less than a window in this time is put out.",
    "disk_timeout_s": "A disk call that takes longer fails the node's store.",
    "sync_in_place_bytes_max": "Smaller writes need no thread while the disk is quick; 0: all do.",
    "lease_s": "How long the registry keeps this node without a sign of life.",
    "heartbeat_s": "The pause between heartbeats on clients' streams.",
    "queue_memory_bytes_max": "The memory for bodies and index entries of all queues.",
    "scrub_rate_bytes": "Bytes per second that the scrub reads from disk; 0: no scrub.",
    "scrub_pause_s": "The scrub's rest after each pass over everything.",
    "embed_below": "Smaller messages are kept in their queue's index; 0: none.",
    "publish_bytes_max": "Bytes of publishes under way on the node above which publishers wait.",
    "unsynced_bytes_max": "Bytes that wait for the disk above which nobody brings more.",
    "buffer_bytes_max": "Bytes held for clients: unread, unsent, and answers of gets, each.",
    "credit_messages": "Held messages of a publish stream above which it isn't read.",
    "credit_more_after": "It is read again when so many of them have gone on.",
    "credit_bytes": "The same in bytes.",
    "producers_max": "Producers that all queues remember, to recognise repeats.",
    "producer_expiry_s": "A producer that is silent for so long is forgotten; 0: never.",
    "ring_bytes_max": "Bytes of one ring on the way to its mirrors above which publishers wait.",
    "memory_watermark": "Memory alarm: a fraction of the memory, or a size like 256MiB.",
    "disk_free_limit": "Disk alarm: free space like 50MB, or 0.5mem: half the memory.",
    "drain_s": "How long a stopping node tries to hand its masters over.",
    "replace_after_s": "Replicas of a node that is down for so long go to another node.",
    "orphan_s": "How long an exclusive or auto-delete queue outlives a connection or consumers "
    "that were lost without a word.",
    "leftover_s": "How long a replica that no record names any more is kept.",
    "set_aside_s": "How long ends of logs that had to be cut are kept; 0: none are.",
    "set_aside_bytes_max": "Bytes of ends of logs that had to be cut and are kept; 0: none.",
    "reflection": "Serve gRPC reflection.",
    "log_level": "debug, info, warning or error.",
}
_TYPES: dict[type, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, str: click.STRING}
LOG_LEVELS = ("debug", "info", "warning", "error")


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds an option for each field of `NodeConfig`; None unless it is given."""
    kinds = get_type_hints(NodeConfig)
    for field in reversed(fields(NodeConfig)):
        flag = field.name.replace("_", "-")
        help_text = _HELP[field.name]
        if field.default is not MISSING and field.default != "":
            help_text += f"  [default: {_as_typed(field.default)}]"
        if kinds[field.name] is bool:
            option = click.option(f"--{flag}/--no-{flag}", field.name, default=None, help=help_text)
        else:
            option = click.option(
                f"--{flag}", field.name, type=_TYPES[kinds[field.name]], help=help_text
            )
        command = option(command)
    return command


def _as_typed(value: object) -> str:
    """A default as a user would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class ShownNames(logging.Formatter):
    """Lines in which names of queues and exchanges are as users know them."""

    def format(self, record: logging.LogRecord) -> str:
        return shown_text(super().format(record))


@click.group()
def node() -> None:
    """Run a node; look at, drain, revive and forget the nodes of a cluster."""


@node.command()
@_setting_options
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with the same settings, `-` in names as `_`.",
)
@json_option
def start(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Serve until SIGTERM or Ctrl-C, then hand the masters over.

    Flags count over the environment (RINGMQ_NODE, RINGMQ_RING_TIMEOUT_S, ...) over
    the file. Needed: --node, --registry, --data. Logs go to stderr.
    """
    config = load_config(flags, file=config_file)
    if config.log_level not in LOG_LEVELS:
        raise ConfigError(f"log_level: {config.log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    logging.basicConfig(level=config.log_level.upper(), format=LOG_FORMAT)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(ShownNames(LOG_FORMAT))
    # Imported here: it pulls in the whole server, which no other command needs, and every
    # command would pay for.
    from ringmq_node.running import serve

    serve(config, ready=partial(announce, as_json=as_json))


def announce(served: Node, *, as_json: bool) -> None:
    """Prints that the node serves, or that it is up and has lost its store already."""
    failure = served.gate.failure
    up = {"node": served.config.node, "address": served.address}
    if as_json and failure is None:
        emit_json({**up, "state": "ready"})
    elif as_json:
        emit_json({**up, "state": "failed", "reason": str(failure)})
    elif failure is None:
        # `echo` flushes: scripts wait for this line.
        click.echo(f"ringmq node {served.config.node} ready at {served.address}")
    else:
        at = f"up at {served.address} without its queues"
        click.echo(f"ringmq node {served.config.node} is {at}: {failure}")


for _command in (list_nodes, drain, revive, forget):
    node.add_command(_command)
