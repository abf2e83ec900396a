"""Whether a node's disk is the one that it used last, and what is recorded of it when."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import lone_node, replica_of
from waiting import until

import ringmq
from ringmq_gm.nodes import NODES, NodeRecord
from ringmq_gm.registry.base import (
    Delete,
    Put,
    Registry,
    RegistryError,
    RegistryUnavailableError,
    RegistryWentBackError,
)
from ringmq_gm.registry.url import open_registry
from ringmq_node.config import NodeConfig
from ringmq_node.errors import StartError
from ringmq_node.identity import (
    DiskStanding,
    check_own_name,
    judge_disk,
    patiently,
    registered_store,
)
from ringmq_node.storage import Store, StoreLife
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.disk.life import LIFE_NAME, read_life, write_life


@pytest.mark.parametrize(
    ("own", "registered", "standing"),
    [
        (None, None, DiskStanding.NEW),
        (StoreLife("x", 3), None, DiskStanding.NEW),
        (StoreLife("x", 3), StoreLife("x", 3), DiskStanding.SAME),
        # It ended between the two records of its last life.
        (StoreLife("x", 4), StoreLife("x", 3), DiskStanding.SAME),
        (StoreLife("x", 2), StoreLife("x", 3), DiskStanding.RESTORED),
        (StoreLife("y", 3), StoreLife("x", 3), DiskStanding.LOST),
        (StoreLife("y", 9), StoreLife("x", 3), DiskStanding.LOST),
        (None, StoreLife("x", 3), DiskStanding.LOST),
    ],
)
def test_a_disk_is_trusted_if_it_has_every_life_that_the_registry_knows(
    own: StoreLife | None, registered: StoreLife | None, standing: DiskStanding
) -> None:
    assert judge_disk(own, registered) is standing
    assert standing.is_trusted == (standing in (DiskStanding.NEW, DiskStanding.SAME))


def test_a_life_is_read_as_written(tmp_path: Path) -> None:
    disk = FileDisk()
    try:
        assert read_life(disk, tmp_path) is None
        for life in (StoreLife("abc", 1), StoreLife("abc", 12)):
            write_life(disk, tmp_path, life)
            assert read_life(disk, tmp_path) == life
        path = tmp_path / LIFE_NAME
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        assert read_life(disk, tmp_path) is None
    finally:
        disk.close()


def holding(
    registry: Registry, folder: Path, work: Callable[[NodeConfig, Store], Awaitable[None]]
) -> None:
    """Another data directory's node a is registered, without a lease that could run out."""

    async def main() -> None:
        other = NodeRecord("a", 1, "127.0.0.1:1", {"identity": "another"})
        await registry.commit([], [Put(NODES + "a", other.encode())])
        config = NodeConfig("a", "sqlite:///unused", str(folder / "data"), lease_s=0.2)
        store = Store.open(folder / "data", cluster_id="c", node="a")
        try:
            async with asyncio.timeout(30):
                await work(config, store)
        finally:
            store.close()
            await registry.close()

    run(main())


@pytest.mark.parametrize(
    ("error", "asked"), [(RegistryUnavailableError, 3), (RegistryWentBackError, 1)]
)
def test_a_registry_that_does_not_answer_is_asked_again(
    error: type[RegistryError], asked: int
) -> None:
    """But not one that went back to an older state: it stays so."""
    answers: list[RegistryError | str] = [error("away"), error("away"), "there"]
    count = len(answers)

    async def ask() -> str:
        match answers.pop(0):
            case str(answer):
                return answer
            case failed:
                raise failed

    async def main() -> None:
        async with asyncio.timeout(30):
            with suppress(RegistryWentBackError):
                assert await patiently(ask) == "there"

    run(main())
    assert count - len(answers) == asked


def test_a_name_that_is_in_use_is_refused(tmp_path: Path) -> None:
    registry = open_registry(f"sqlite:///{tmp_path / 'registry.db'}")

    async def work(config: NodeConfig, store: Store) -> None:
        with pytest.raises(StartError, match="from another data directory"):
            await check_own_name(registry, config, store)

    holding(registry, tmp_path, work)


def test_the_lease_of_a_life_that_was_killed_is_waited_for(tmp_path: Path) -> None:
    registry = open_registry(f"sqlite:///{tmp_path / 'registry.db'}")

    async def work(config: NodeConfig, store: Store) -> None:
        checking = asyncio.create_task(check_own_name(registry, config, store))
        await asyncio.sleep(0)
        assert not checking.done()
        await registry.commit([], [Delete(NODES + "a")])
        await checking

    holding(registry, tmp_path, work)


def test_a_new_life_is_recorded_before_the_node_starts(tmp_path: Path) -> None:
    """Else a copy of the disk, taken of the life before, could pass for it."""

    async def main() -> None:
        async with asyncio.timeout(20):
            node = await lone_node(tmp_path)
            try:
                registered = (await registered_store(node.registry, "a")).life
                assert registered is not None
                assert registered == read_life(node.store.disk, node.store.directory)
                assert registered.incarnation == node.me.incarnation
            finally:
                await node.stop()

    run(main())


@pytest.mark.logs("may lack confirmed messages")
@pytest.mark.logs("queue q: quarantined: ")
def test_a_lost_disk_stays_untrusted_while_a_record_cannot_be_read(tmp_path: Path) -> None:
    """When it could be read again, the replica looked whole, and began its ring from nothing."""

    async def main() -> None:
        async with asyncio.timeout(20):
            first = await lone_node(tmp_path)
            await first.start()
            async with ringmq.connect(first.address) as client:
                await client.declare_queue("q")
                async with client.publisher("q") as publisher:
                    await publisher.publish(b"confirmed")
            record = first.catalogue.record_of("q")
            await first.registry.commit([], [Put(record.key, b"garbage")])
            await first.stop()
            shutil.rmtree(tmp_path / "data")
            second = await lone_node(tmp_path)
            try:
                await second.start()
                await second.registry.commit([], [Put(record.key, record.encode())])
                await until(lambda: bool(second.hosting.replicas), "it is opened")
                assert replica_of(second).store.partial
                assert not replica_of(second).log_is_whole
            finally:
                await second.stop()

    run(main())


@pytest.mark.logs("may lack confirmed messages")
def test_a_lost_disk_stays_untrusted_if_not_all_replicas_were_opened(tmp_path: Path) -> None:
    """Some have no mark yet: a disk that is trusted now would make them look whole."""

    async def main() -> None:
        async with asyncio.timeout(20):
            first = await lone_node(tmp_path)
            await first.stop()
            shutil.rmtree(tmp_path / "data")
            second = await lone_node(tmp_path)
            try:
                before = await registered_store(second.registry, "a")
                second.gate.draining = True
                await second._trust_disk()
                assert await registered_store(second.registry, "a") == before
                second.gate.draining = False
                await second._trust_disk()
                assert (await registered_store(second.registry, "a")).life != before.life
            finally:
                await second.stop()

    run(main())
