"""A catalogue that follows a registry, while other nodes write the records that it deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from loops import run

from ringmq_base.pieces import Pieces
from ringmq_gm import MemberId, first_view, ring_key
from ringmq_gm.registry.base import (
    Guard,
    Put,
    Registry,
)
from ringmq_gm.registry.url import open_registry
from ringmq_node.broker import catalogue as catalogue_module
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.deleting import Deleting
from ringmq_node.model.records import QueueMode, QueueRecord

RECORD = QueueRecord("q", "id", ("other",), 1)
NAMESAKE = QueueRecord("q", "another", ("other",), 1)


def with_catalogue(
    folder: Path, work: Callable[[QueueCatalogue, Deleting, Registry], Awaitable[None]]
) -> None:
    """The catalogue follows a registry that has `RECORD`."""

    async def reconcile(touched: Mapping[str, QueueRecord | None]) -> None:
        assert all(record is None or record.name == "q" for record in touched.values())

    async def main() -> None:
        registry = open_registry(f"sqlite:///{folder / 'registry.db'}")
        await put(registry, RECORD)
        catalogue = QueueCatalogue(registry)
        following = asyncio.create_task(catalogue.follow(reconcile))
        try:
            async with asyncio.timeout(30):
                await catalogue.loaded.wait()
                await work(catalogue, Deleting(registry, catalogue, cast(Any, None)), registry)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await registry.close()

    run(main())


async def put(registry: Registry, record: QueueRecord) -> None:
    view = first_view([MemberId("other", 1)], 1)
    assert await registry.commit(
        [Guard(record.key, 0)],
        [Put(record.key, record.encode()), Put(ring_key(record.id), view.encode())],
    )


def test_deleted_though_its_record_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(catalogue: QueueCatalogue, deleting: Deleting, registry: Registry) -> None:
        commit = registry.commit

        async def overtaken(guards: Any, operations: Any) -> int | None:
            monkeypatch.undo()
            entry = await registry.get(RECORD.key)
            assert entry is not None
            lazy = replace(RECORD, mode=QueueMode.LAZY)
            await commit([Guard(entry.key, entry.revision)], [Put(entry.key, lazy.encode())])
            return await commit(guards, operations)

        monkeypatch.setattr(registry, "commit", overtaken)
        await deleting.delete("q")
        assert await registry.get(RECORD.key) is None
        assert await registry.get(ring_key(RECORD.id)) is None

    with_catalogue(tmp_path, work)


@pytest.mark.parametrize("by_us", [True, False])
def test_deleted_though_it_is_declared_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_us: bool
) -> None:
    """The watch need never show that there was none of that name."""

    async def work(catalogue: QueueCatalogue, deleting: Deleting, registry: Registry) -> None:
        commit = registry.commit

        async def followed(guards: Any, operations: Any) -> int | None:
            monkeypatch.undo()
            revision = await commit(guards, operations)
            await put(registry, NAMESAKE)
            return revision if by_us else None

        monkeypatch.setattr(registry, "commit", followed)
        await deleting.delete("q")
        while catalogue.records.get("q") != NAMESAKE:
            await catalogue._changed.wait()

    with_catalogue(tmp_path, work)


def test_a_revision_is_shown_once_all_of_its_queues_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declare whose commit is answered in the middle would find no queue, and be made again."""
    monkeypatch.setattr(catalogue_module, "Pieces", lambda: Pieces(0.0))
    records = [QueueRecord(f"q{at}", f"id{at}", ("other",), 1) for at in range(20)]

    async def reconcile(touched: Mapping[str, QueueRecord | None]) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        registry = open_registry(f"sqlite:///{tmp_path / 'registry.db'}")
        catalogue = QueueCatalogue(registry)
        following = asyncio.create_task(catalogue.follow(reconcile))
        try:
            async with asyncio.timeout(20):
                await catalogue.loaded.wait()
                committed = asyncio.create_task(
                    registry.commit([], [Put(each.key, each.encode()) for each in records])
                )
                while not catalogue.records:  # noqa: ASYNC110 - each turn counts here
                    await asyncio.sleep(0)
                assert len(catalogue.records) < len(records)
                revision = await committed
                assert revision is not None
                await catalogue.wait_shown(revision)
                assert len(catalogue.records) == len(records)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await registry.close()

    run(main())
