"""A node's part in all of its rings: links, failure detection, the registry, timers.

One `Group` per process. It hosts a member of each ring that the node is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc.aio

from ringmq_gm.changes import LogEnd
from ringmq_gm.nodes import NodeRecord
from ringmq_gm.options import GroupOptions
from ringmq_gm.registry.base import Registry
from ringmq_gm.rings import Application, Ring

RINGS = "rings/"


def ring_key(ring: str) -> str:
    """Where the registry has the view of `ring` (`View.encode`)."""
    return RINGS + ring


class Group:
    """See the module."""

    def __init__(
        self,
        registry: Registry,
        *,
        node: str,
        incarnation: int,
        address: str,
        options: GroupOptions | None = None,
        extra: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """`address` is where others reach this node's gRPC server (`host:port`);
        `incarnation` comes from `next_incarnation`; `extra` (JSON) is told to the others
        with them, in `nodes()`. `seed` makes the jitter repeatable."""
        self.options = options or GroupOptions()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Lets `server` answer `/ringmq.v1.Ring/Link`, and no other method. Before it starts."""

    async def run(self) -> None:
        """Registers the node and works for its rings until cancelled; start the server first.

        Raises `RingFailedError` (a core or an application has raised) and `SupersededError`
        (a later life of this node has registered). Either way, and when cancelled, the
        rings are closed when it returns.
        """

    async def wait_ready(self) -> None:
        """Returns once the node is registered and all nodes and rings have been read."""

    @property
    def registry_available(self) -> bool:
        """Whether this node holds its lease: the registry has answered lately."""
        return False

    def nodes(self) -> dict[str, NodeRecord]:
        """The nodes that hold a lease, by name, this one included."""
        return {}

    def open(
        self, ring: str, application: Application, log: LogEnd, *, log_is_whole: bool = True
    ) -> Ring:
        """Hosts a member of `ring` from now on. `log` is what the application has on disk;
        `log_is_whole` is False if it may have lost some of it.

        The application is called from a later turn of the event loop on, not before this
        has returned. Raises `ValueError` if the ring is open already.
        """
        raise NotImplementedError

    async def close_ring(self, ring: str) -> None:
        """Hosts it no more; what it has asked of the registry has been answered when this
        returns. The ring itself goes on without this member. No error if it isn't open."""
