"""What commands print: JSON for programs, tables for people, plain columns for pipes.

Results go to stdout. Progress goes to stderr, and as a bar only if that is a
terminal. Names of JSON fields are those of the wire, sizes and times with units.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from ringmq import ClusterStatus, NodeInfo, QueueInfo, Resources


def emit_json(value: object) -> None:
    """One line, written out at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def emit_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; elsewhere tabs between the columns, the header first."""
    if not sys.stdout.isatty():
        click.echo("\t".join(headers))
        for row in rows:
            click.echo("\t".join(map(str, row)))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table, markup=False)


def emit_facts(facts: Mapping[str, object]) -> None:
    """`name  value` lines. Underscores in names become spaces, None is left out."""
    shown = {name.replace("_", " "): value for name, value in facts.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name:<{width}}  {_text(value)}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_text(each)}" for name, each in value.items())
    return str(value)


def progress_bar() -> Progress:
    """On stderr; shows nothing unless that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def queue_json(info: QueueInfo) -> dict[str, Any]:
    return {
        "queue": info.queue,
        "id": info.id,
        "state": info.state.name.lower(),
        "epoch": info.epoch,
        "master": info.master,
        "ring": [
            {
                "node": replica.node,
                "incarnation": replica.incarnation,
                "synchronised": replica.synchronised,
                "received": replica.received,
                "persisted": replica.persisted,
            }
            for replica in info.ring
        ],
        "replicas_wanted": info.replicas_wanted,
        "min_insync": info.min_insync,
        "messages_ready": info.messages_ready,
        "messages_unacknowledged": info.messages_unacknowledged,
        "messages_damaged": info.messages_damaged,
        "bytes_ready": info.bytes_ready,
        "bytes_unacknowledged": info.bytes_unacknowledged,
        "consumers": info.consumers,
        "publishers": info.publishers,
        "next_position": info.next_position,
        "published_total": info.published_total,
        "acknowledged_total": info.acknowledged_total,
        "mode": info.mode.name.lower(),
        "durable": info.durable,
        "stable": info.stable,
        "digest": info.digest,
    }


def ring_text(info: QueueInfo) -> str:
    """`a b c?`: in ring order, the master first; `?` is not synchronised."""
    return " ".join(replica.node + ("" if replica.synchronised else "?") for replica in info.ring)


def node_json(info: NodeInfo) -> dict[str, Any]:
    return {
        "node": info.node,
        "address": info.address,
        "state": info.state.name.lower(),
        "incarnation": info.incarnation,
        "version": info.version,
        "masters": info.masters,
        "mirrors": info.mirrors,
        "resources": None if info.resources is None else asdict(info.resources),
    }


def size_text(size_bytes: int) -> str:
    """`9.4 GiB`: to look at, not to count with."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def resources_texts(resources: Resources | None) -> tuple[str, str, str]:
    """Memory used of its limit, free disk, and what of it is short; `-`: nothing, or not known."""
    if resources is None:
        return "-", "-", "-"
    used, limit = resources.memory_used_bytes, resources.memory_limit_bytes
    alarms = {
        "memory": resources.memory_alarm,
        "disk": resources.disk_alarm,
        "store": resources.store_failure is not None,
    }
    return (
        f"{size_text(used)} of {size_text(limit)}",
        size_text(resources.disk_free_bytes),
        " ".join(name for name, on in alarms.items() if on) or "-",
    )


def status_json(status: ClusterStatus) -> dict[str, Any]:
    return {
        "cluster": status.cluster_id,
        "answered_by": status.node,
        "registry_available": status.registry_available,
        "queues": status.queues,
        "nodes": [node_json(info) for info in status.nodes],
    }


def fail(message: str) -> None:
    """The one line on stderr that says what is wrong."""
    print(f"ringmq: {' '.join(message.split())}", file=sys.stderr)
