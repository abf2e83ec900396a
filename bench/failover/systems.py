"""What the rounds ask of a system: its queues, its nodes, and the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bench.failover.load import Sender

FAILOVER, CATCH_UP = "failover", "catchup"


class System(Protocol):
    """A started cluster of three nodes. It has a queue of each name for each of its `kinds`."""

    @property
    def kinds(self) -> Sequence[str]:
        """Its rows in the report."""
        ...

    def describe(self) -> dict[str, str]: ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Ends all processes. Raises `BenchError` if a node has logged what it shouldn't."""
        ...

    async def declare(self, kind: str, name: str) -> None: ...

    async def delete(self, kind: str, name: str) -> None: ...

    async def wait_whole(self, name: str, kinds: Sequence[str]) -> dict[str, str]:
        """Until all replicas of these queues are synchronised; their masters by kind.

        Raises `BenchError` after a while."""
        ...

    async def gather(self, name: str, masters: Mapping[str, str]) -> dict[str, str]:
        """Moves the masters of these whole queues to one node, so that one fault meets all of
        them; where they are then."""
        ...

    def mirror(self, master: str) -> str:
        """A node that isn't this one."""
        ...

    def sender(self, kind: str) -> Sender: ...

    async def fill(self, kind: str, name: str, count: int, size_bytes: int) -> None:
        """Publishes so many messages as fast as it can."""
        ...

    async def drain(self, kind: str, name: str) -> list[int]:
        """Takes all messages out; their numbers."""
        ...

    def kill(self, node: str) -> None:
        """SIGKILL."""
        ...

    async def bring_back(self, node: str) -> None:
        """Starts it, and returns at once."""
        ...

    def cut(self, node: str) -> None:
        """Nothing passes between it and the other servers; clients reach all of them."""
        ...

    def heal(self, node: str) -> None: ...

    def received_bytes(self, node: str) -> int:
        """What its link has taken in so far."""
        ...
