"""Nodes in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ringmq_node.config import NodeConfig
from ringmq_node.node import Node, make_node
from ringmq_node.replica.replica import Replica
from ringmq_wire import WireChannel


async def lone_node(folder: Path, **settings: Any) -> Node:
    """Node a of a cluster, not started; it has its data and its registry in `folder`."""
    (folder / "data").mkdir(exist_ok=True)
    return await make_node(
        NodeConfig(
            node="a",
            registry=f"sqlite:///{folder / 'registry.db'}",
            data=str(folder / "data"),
            listen="127.0.0.1:0",
            drain_s=0.1,
            **settings,
        )
    )


@asynccontextmanager
async def called_node(folder: Path, **settings: Any) -> AsyncIterator[tuple[Node, WireChannel]]:
    """`lone_node`, serving, and a channel to its port."""
    node = await lone_node(folder, **settings)
    await node.start()
    channel = WireChannel(node.address)
    try:
        yield node, channel
    finally:
        await channel.close()
        await node.stop()


@asynccontextmanager
async def running_nodes(
    folder: Path, names: Iterable[str], **settings: Any
) -> AsyncIterator[dict[str, Node]]:
    """Nodes of one cluster, by name, which have their data and their registry in `folder`."""
    nodes: dict[str, Node] = {}
    try:
        for name in names:
            config = NodeConfig(
                name,
                f"sqlite:///{folder / 'registry'}",
                str(folder / name),
                listen="127.0.0.1:0",
                drain_s=0.1,
                **settings,
            )
            nodes[name] = await make_node(config)
            await nodes[name].start()
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))


def replica_of(node: Node, queue: str = "q") -> Replica:
    """The node's replica of a queue."""
    return node.hosting.replica_of(node.catalogue.record_of(queue))
