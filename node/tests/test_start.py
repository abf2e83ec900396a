"""A node that starts with queues to recover."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from loops import run
from node.tests.nodes import lone_node
from waiting import leeway, until

import ringmq_node.node as node_module
from ringmq_gm import MemberId, first_view, ring_key
from ringmq_gm.nodes import NodeRecord
from ringmq_gm.registry.base import Guard, Put
from ringmq_gm.registry.url import open_registry
from ringmq_node import shortage
from ringmq_node.cli.node import announce
from ringmq_node.config import NodeConfig
from ringmq_node.errors import StartError
from ringmq_node.model.reasons import Reason
from ringmq_node.model.records import QueueRecord
from ringmq_node.node import Node, make_node
from ringmq_node.opening import check_found, enrol_node
from ringmq_node.replica.interleaver import Interleaver
from ringmq_node.running import run_node
from ringmq_node.storage import FileDisk, QueueStore, Store
from ringmq_node.storage import store as store_module
from ringmq_node.storage.disk import threads
from ringmq_node.storage.errors import DiskFullError, DiskHangsError, failure_of

QUEUES = 8
OPENING_S = 0.1


async def stopped_node(folder: Path, **settings: Any) -> Node:
    node = await lone_node(folder, **settings)
    await node.stop()
    return node


async def unstarted(folder: Path, queues: int) -> Node:
    """A node that has this many queues of its own in the registry."""
    node = await lone_node(folder)
    for index in range(queues):
        record = QueueRecord(f"q{index}", f"id{index}", ("a",), 1)
        view = first_view([MemberId("a", node.me.incarnation)], 1)
        await node.registry.commit(
            [Guard(record.key, 0)],
            [Put(record.key, record.encode()), Put(ring_key(record.id), view.encode())],
        )
    return node


@pytest.mark.slow
def test_recovery_has_no_deadline_and_leaves_the_loop_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry's deadline is shorter than the time in which the queues are read."""
    opening = Store.open_queue
    opened: list[str] = []
    # How many were opened during each piece of the lease's work.
    meanwhile: list[int] = []

    def slowly(self: Store, queue: str, **arguments: Any) -> QueueStore:
        time.sleep(OPENING_S)
        opened.append(queue)
        return opening(self, queue, **arguments)

    async def lease() -> None:
        """Plays the lease: work that takes some turns of the loop."""
        while True:
            before = len(opened)
            for _ in range(5):
                await asyncio.sleep(0)
            meanwhile.append(len(opened) - before)

    async def main() -> None:
        async with asyncio.timeout(20):
            node = await unstarted(tmp_path, QUEUES)
            monkeypatch.setattr(node_module, "START_DEADLINE_S", QUEUES * OPENING_S * 0.8)
            monkeypatch.setattr(Store, "open_queue", slowly)
            beside = asyncio.create_task(lease())
            await node.start()
            beside.cancel()
            assert len(node.hosting.replicas) == QUEUES
            assert len(opened) == QUEUES
            # One, as a rule. Five, if opening left the loop one turn only.
            assert 1 <= max(meanwhile) <= 2
            await node.stop()

    run(main())


@pytest.mark.slow
def test_sigterm_ends_a_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the queue that is being read, not after all of them."""
    opening = Store.open_queue
    opened: list[str] = []

    def slowly(self: Store, queue: str, **arguments: Any) -> QueueStore:
        time.sleep(OPENING_S)
        opened.append(queue)
        if len(opened) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return opening(self, queue, **arguments)

    async def main() -> None:
        node = await unstarted(tmp_path, 20)
        await node.stop()
        monkeypatch.setattr(Store, "open_queue", slowly)
        async with asyncio.timeout(20):
            await run_node(node.config, ready=lambda _: pytest.fail("it was ready"))
        assert len(opened) < 5

    run(main())


def test_sigterm_ends_a_wait_for_the_registry(tmp_path: Path) -> None:
    """It is away, and a node that starts asks it for half a minute."""

    async def main() -> None:
        config = NodeConfig("a", "etcd://127.0.0.1:1/x", str(tmp_path), listen="127.0.0.1:0")
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(leeway(5)):
            await run_node(config, ready=lambda _: pytest.fail("it was ready"))

    run(main())


def test_a_node_that_can_not_be_made_leaves_no_registry_open(tmp_path: Path) -> None:
    """It is made again every second while it lacks something: what it leaves would add up."""

    # Of tests before.
    others = {*threading.enumerate()}

    def registry_threads() -> list[str]:
        mine = {*threading.enumerate()} - others
        return [thread.name for thread in mine if "registry" in thread.name]

    async def main() -> None:
        data = tmp_path / "data"
        data.write_text("a file, where a directory should be")
        config = NodeConfig(
            "a", f"sqlite:///{tmp_path / 'registry.db'}", str(data), listen="127.0.0.1:0"
        )
        with pytest.raises(StartError, match="data directory"):
            await make_node(config)
        await until(lambda: registry_threads() == [], within_s=2)

    run(main())


@pytest.mark.parametrize("anywhere", ["0.0.0.0:7800", "[::]:7800", "0:7800", "[0:0::0]:7800"])
def test_a_node_that_others_can_not_find_does_not_join_them(
    anywhere: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It listens at all addresses of its machine, and says no other: for others that is their own
    machine. By itself it may. One that has joined before goes on, and says so."""
    registry = open_registry(f"sqlite:///{tmp_path / 'registry.db'}")

    async def begins(node: str, address: str, url: str = "etcd://e:2379/r") -> None:
        config = NodeConfig(node, url, "data", listen=anywhere, advertise=address)
        await check_found(registry, config)
        await enrol_node(registry, config)
        put = Put(f"nodes/{node}", NodeRecord(node, 1, address or anywhere).encode())
        await registry.commit([], [put])

    async def main() -> None:
        await begins("a", "")
        await begins("a", "")
        assert caplog.messages == []
        with pytest.raises(StartError, match=r"^advertise: .* has other nodes \(a\): give the one"):
            await begins("b", "")
        await begins("b", "10.0.0.2:7800")
        assert [text.partition(",")[0] for text in caplog.messages] == [
            f"node 'a' is registered at {anywhere}"
        ]
        await begins("a", "")
        # Who was refused isn't one of them.
        assert "the cluster has other nodes (b): give" in caplog.messages[-1]
        # All on this machine.
        await begins("c", "", "sqlite:///registry.db")
        await begins("a", "10.0.0.1:7800")
        assert "node 'c'" in caplog.messages[-1]
        await registry.close()

    run(main())


@pytest.mark.logs("the store has failed, this node leaves its rings")
def test_a_node_whose_store_fails_while_it_starts_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Store.open_queue

    def fails(self: Store, queue: str, **arguments: Any) -> QueueStore:
        opened = opening(self, queue, **arguments)
        self.on_failed(failure_of(OSError(errno.ENOSPC, "No space left on device")))
        return opened

    async def main() -> None:
        node = await unstarted(tmp_path, 1)
        monkeypatch.setattr(Store, "open_queue", fails)
        try:
            await node.start()
            await until(lambda: node.gate.failure is not None, "the store has failed")
            async with grpc.aio.insecure_channel(node.address) as channel:
                # Its generated code has no types.
                health = cast(Any, HealthStub(channel))

                async def is_told() -> bool:
                    answer = await health.Check(HealthCheckRequest())
                    return bool(answer.status is HealthCheckResponse.NOT_SERVING)

                await until(is_told)
        finally:
            await node.stop()

    run(main())


@pytest.mark.logs("lost or replaced")
@pytest.mark.logs("the store has failed, this node leaves its rings")
def test_a_node_with_a_new_disk_that_is_full_stays_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And begins another life when there is room, as any node whose disk is full. It was said to be
    ready."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.stop()
        shutil.rmtree(tmp_path / "data")
        node = await lone_node(tmp_path)
        try:
            monkeypatch.setattr(node.store.disk, "sync_all", full)
            await node.start()
            assert isinstance(node.gate.failure, DiskFullError)
            announce(node, as_json=False)
            announce(node, as_json=True)
            text, fields = capsys.readouterr().out.splitlines()
            why = f"up at {node.address} without its queues: {node.gate.failure}"
            assert text == f"ringmq node a is {why}"
            assert "No space left on device" in text
            assert json.loads(fields)["state"] == "failed"
        finally:
            await node.stop()

    run(main())


class Lives:
    """A node's process, which looks for room without a pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shortage, "PAUSE_S_MIN", 0.0)
        monkeypatch.setattr(store_module, "TICK_S", 0.02)
        self.nodes: list[Node] = []
        self.begun = asyncio.Event()
        # What a thread waits for.
        self.release = threading.Event()

    def begin(self, node: Node) -> None:
        self.nodes.append(node)
        self.begun.set()

    def fail_full(self) -> None:
        self.nodes[0].store.fail(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.logs("the store has failed, this node leaves its rings")
@pytest.mark.logs("the store of node a: .* has not come back for 0.1 s: look at the disk")
def test_a_node_whose_disk_hangs_after_it_was_full_begins_no_other_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there is room. It stays to say that somebody has to look at the disk."""

    async def main() -> None:
        config = (await stopped_node(tmp_path, disk_timeout_s=0.1)).config
        lives = Lives(monkeypatch)
        real = FileDisk.read

        def read(disk: FileDisk, path: Path, offset: int, size: int) -> bytes:
            if path.name == "hangs":
                lives.release.wait()
            return real(disk, path, offset, size)

        monkeypatch.setattr(FileDisk, "read", read)
        running = asyncio.ensure_future(run_node(config, ready=lives.begin))
        try:
            await lives.begun.wait()
            (node,) = lives.nodes
            reading = partial(node.store.disk.read, Path("hangs"), 0, 1)
            node.store.errands.begin("test", reading).add_done_callback(
                lambda read: read.exception()
            )
            await until(lambda: bool(node.store.watched.slow_call()), "it takes long")
            lives.fail_full()
            assert isinstance(node.gate.failure, DiskFullError)
            await until(lambda: isinstance(node.gate.failure, DiskHangsError), "it hangs")
            assert node.gate.failure_reason is Reason.STORE_FAILED
            assert not running.done()
            assert lives.nodes == [node]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            lives.release.set()
        assert node.store.holds_directory

    run(main())


@pytest.mark.logs("the store has failed, this node leaves its rings")
@pytest.mark.logs("a thread may still write to .*, which stays locked: look at the disk")
def test_a_node_with_a_thread_that_does_not_end_ends_instead_of_another_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        config = (await stopped_node(tmp_path)).config
        lives = Lives(monkeypatch)
        running = asyncio.ensure_future(run_node(config, ready=lives.begin))
        try:
            await lives.begun.wait()
            monkeypatch.setattr(threads, "WAIT_S_MAX", 0.1)
            lives.nodes[0].store.errands.begin("test", lives.release.wait)
            lives.fail_full()
            async with asyncio.timeout(30):
                with pytest.raises(StartError, match="stays locked: look at the disk, then start"):
                    await running
            assert len(lives.nodes) == 1
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            lives.release.set()

    run(main())


@pytest.mark.logs("group ends: node 'a': incarnation 3 has registered from")
def test_a_node_that_a_copy_of_its_directory_has_superseded_ends_with_one_line(
    tmp_path: Path,
) -> None:
    """It ended with a traceback, twice."""

    async def main() -> None:
        first = await lone_node(tmp_path)
        ready = asyncio.Event()
        config = first.config
        await first.stop()
        running = asyncio.ensure_future(run_node(config, ready=lambda _: ready.set()))
        await ready.wait()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        second = await make_node(replace(config, data=str(tmp_path / "copy")))
        try:
            await second.start()
            with pytest.raises(StartError, match=r"^node 'a': incarnation 3 .* must stop$"):
                await running
        finally:
            running.cancel()
            await second.stop()

    run(main())


def test_progress_is_said_if_it_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        interleaver = Interleaver("opening", 2, log_s=0.0)
        await interleaver.turn()
        for _ in range(2):
            await interleaver.step()
        interleaver.end()
        brief = Interleaver("brief", 1)
        await brief.step()
        brief.end()

    with caplog.at_level(logging.INFO):
        run(main())
    said = [record.getMessage().rpartition(",")[0] for record in caplog.records]
    assert said == [
        "opening under way: 1 of 2 queues",
        "opening under way: 2 of 2 queues",
        "opening done: 2 of 2 queues",
    ]
