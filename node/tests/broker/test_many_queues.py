"""What a declare costs doesn't depend on how many queues there are: counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node.tests.broker.test_deleting import with_node

import ringmq
from ringmq_gm import View
from ringmq_gm.core.quick import QuickMember
from ringmq_gm.registry.base import Snapshot
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.placement import Fleet
from ringmq_node.model.records import QueueRecord
from ringmq_node.node import Node
from ringmq_node.storage.disk.watch import WatchedDisk

BATCH = 50


class Work:
    """Counts what has been seen to grow with the number of queues."""

    def __init__(self, node: Node, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for kind, name in (
            (QueueRecord, "decode"),
            (View, "decode"),
            (QuickMember, "step"),
            (WatchedDisk, "list"),
            (Fleet, "__init__"),
        ):
            patch.setattr(kind, name, self._counted(f"{kind.__name__}.{name}", getattr(kind, name)))
        for name in ("get", "read", "list", "commit"):
            asked = getattr(node.registry, name)
            patch.setattr(node.registry, name, self._asked(name, asked))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.counts[name] += 1
            return function(*arguments, **more)

        return counted

    def _asked(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any, **more: Any) -> Any:
            self.counts[f"registry.{name}"] += 1
            answer = await function(*arguments, **more)
            if isinstance(answer, Snapshot):
                self.counts[f"entries of registry.{name}"] += len(answer.entries)
            return answer

        return counted

    def take(self) -> Counter[str]:
        counts, self.counts = self.counts, Counter()
        return counts


async def declare(node: Node, first: int, count: int) -> None:
    names = [f"many{number}" for number in range(first, first + count)]
    await asyncio.gather(*(node.broker.declare(n, QueueArguments(), Caller(60.0)) for n in names))


def test_the_work_for_a_declare_does_not_grow_with_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each decoded the views of all rings: 92 a second at the first, 15 at the two-thousandth."""

    async def work(node: Node, client: ringmq.Client) -> None:
        work = Work(node, monkeypatch)
        await declare(node, 0, 100)
        work.take()
        await declare(node, 100, BATCH)
        at_100 = work.take()
        await declare(node, 100 + BATCH, 1000 - 100 - BATCH)
        work.take()
        await declare(node, 1000, BATCH)
        at_1000 = work.take()
        for kind, count in at_1000.items():
            if kind.endswith("registry.read"):
                # A ring is read by its name if it is hosted here before the watch has shown it. How
                # many of a batch are is a race; never another ring than those of the batch.
                assert count <= BATCH, (kind, at_1000)
                continue
            # Timers may fire once more for some of the new queues.
            assert count <= 1.5 * at_100[kind] + 5, (kind, at_100, at_1000)
        assert at_1000["QueueRecord.decode"] == BATCH
        # The views of those that were read come with the watch, too.
        read = at_1000["entries of registry.read"]
        assert BATCH <= at_1000["View.decode"] <= BATCH + read
        assert at_1000["registry.commit"] <= 3
        assert at_1000["entries of registry.list"] <= 10

    with_node(tmp_path, work)
