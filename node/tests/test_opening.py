"""A node's place in its cluster, of a registry whose commits have no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from loops import run

from ringmq_gm.registry.base import CommitUnknownError
from ringmq_gm.registry.sqlite import SqliteRegistry
from ringmq_node.broker.cluster_settings import node_key
from ringmq_node.config import NodeConfig
from ringmq_node.errors import StartError
from ringmq_node.identity import disk_identity
from ringmq_node.opening import enrol_node, place_of
from ringmq_node.storage import Store
from ringmq_node.storage.disk.life import read_life


class UnansweringRegistry(SqliteRegistry):
    """Every other commit has no answer, or none has one (`answers` False)."""

    def __init__(self, path: Path, *, answers: bool, is_carried_out: bool) -> None:
        super().__init__(path)
        self.commits = 0
        self._answers = answers
        self._is_carried_out = is_carried_out

    async def commit(self, *arguments: Any, **more: Any) -> int | None:
        self.commits += 1
        is_answered = self._answers and self.commits % 2 == 0
        revision = None
        if is_answered or self._is_carried_out:
            revision = await super().commit(*arguments, **more)
        if not is_answered:
            raise CommitUnknownError("no answer")
        return revision


def opening(
    folder: Path, registry: UnansweringRegistry, work: Callable[[NodeConfig], Awaitable[None]]
) -> None:
    config = NodeConfig("a", f"sqlite:///{folder / 'registry.db'}", str(folder / "data"))

    async def main() -> None:
        try:
            async with asyncio.timeout(30):
                await work(config)
        finally:
            await registry.close()

    run(main())


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_commit_without_an_answer_is_looked_for_and_made_again(
    tmp_path: Path, is_carried_out: bool
) -> None:
    """As while etcd changes its leader. The first node of a cluster ended at its start."""
    registry = UnansweringRegistry(
        tmp_path / "registry.db", answers=True, is_carried_out=is_carried_out
    )

    async def work(config: NodeConfig) -> None:
        cluster_id, key, incarnation = await place_of(registry, config)
        await enrol_node(registry, config)
        assert (await registry.get(node_key("a"))) is not None
        # A number may be lost, and none is given out twice.
        assert incarnation in (1, 2)
        store = Store.open(tmp_path / "data", cluster_id=cluster_id, node="a")
        try:
            identity = await disk_identity(registry, store, config, incarnation)
            assert read_life(store.disk, store.directory) == identity.life
        finally:
            store.close()
        again_id, again_key, next_one = await place_of(registry, config)
        assert (again_id, again_key.metadata) == (cluster_id, key.metadata)
        assert next_one > incarnation

    opening(tmp_path, registry, work)


def test_a_registry_that_never_answers_a_commit_is_left_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full etcd may answer like this for hours. It was asked as fast as it answered."""
    monkeypatch.setattr("ringmq_node.identity.REGISTRY_WAIT_S", 1.0)
    path = tmp_path / "registry.db"
    founding = UnansweringRegistry(path, answers=True, is_carried_out=True)
    registry = UnansweringRegistry(path, answers=False, is_carried_out=False)

    async def work(config: NodeConfig) -> None:
        await place_of(founding, config)
        await founding.close()
        for begin in (place_of, enrol_node):
            registry.commits = 0
            with pytest.raises(StartError, match="no answer"):
                await begin(registry, config)
            assert 1 < registry.commits < 50

    opening(tmp_path, registry, work)
