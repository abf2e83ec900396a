"""The promises of `registry/base.py`, shown of every engine."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import pytest
import registry_worker
from children import child_environment
from loops import run
from waiting import leeway

from ringmq_gm.registry.base import (
    COMMIT_BYTES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Change,
    Changed,
    Delete,
    Guard,
    KeyValue,
    LimitError,
    Put,
    Registry,
    RegistryUnavailableError,
    Removed,
    Reset,
    SessionLostError,
)


class Engine(Protocol):
    name: str
    url: str

    def open(self) -> Registry: ...


TTL_S = 2.0
# Two thirds of it may pass while other tests keep the disk busy, and it has to be renewed by then.
RENEWED_TTL_S = 6.0
WAIT_S = 10.0


@asynccontextmanager
async def opened(engine: Engine, count: int = 1) -> AsyncIterator[list[Registry]]:
    registries = [engine.open() for _ in range(count)]
    try:
        yield registries
    finally:
        for registry in registries:
            await registry.close()


class Watched:
    """A watch as the state that it amounts to, and everything that it brought."""

    def __init__(self, registry: Registry, prefix: str) -> None:
        self.state: dict[str, KeyValue] = {}
        self.batches: list[Sequence[Change]] = []
        self._watch = registry.watch(prefix)

    async def until(self, **values: bytes | None) -> None:
        """Reads on until each of these keys has this value (None: is gone)."""
        async with asyncio.timeout(WAIT_S):
            while any(self.value(key) != value for key, value in values.items()):
                self.take(await anext(self._watch))

    async def next(self) -> Sequence[Change]:
        async with asyncio.timeout(WAIT_S):
            batch = await anext(self._watch)
        self.take(batch)
        return batch

    def take(self, batch: Sequence[Change]) -> None:
        self.batches.append(batch)
        for change in batch:
            match change:
                case Reset(snapshot):
                    self.state = {entry.key: entry for entry in snapshot.entries}
                case Changed(entry):
                    old = self.state.get(entry.key)
                    assert old is None or old.revision < entry.revision
                    self.state[entry.key] = entry
                case Removed(key):
                    self.state.pop(key, None)

    def value(self, key: str) -> bytes | None:
        return self.state[key].value if key in self.state else None

    async def close(self) -> None:
        await self._watch.aclose()  # type: ignore[attr-defined]


async def _put(registry: Registry, key: str, value: bytes) -> int:
    revision = await registry.commit([], [Put(key, value)])
    assert revision is not None
    return revision


def test_a_read_brings_the_keys_that_exist_as_of_one_revision(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            names = [f"k/{number:03}" for number in range(OPERATIONS_MAX - 1)]
            first = await registry.commit([], [Put(name, name.encode()) for name in names])
            assert first is not None
            second = await _put(registry, "k/001", b"again")
            # One that begins like another key isn't meant.
            await _put(registry, "k/0011", b"")
            snapshot = await registry.read([*reversed(names), "absent"])
            assert [entry.key for entry in snapshot.entries] == names
            assert snapshot.entries[0] == KeyValue("k/000", b"k/000", first)
            assert snapshot.entries[1] == KeyValue("k/001", b"again", second)
            assert snapshot.revision >= second
            assert (await registry.read(["k/001", "k/001"])).entries == snapshot.entries[1:2]
            assert (await registry.read([])).entries == ()

    run(scenario())


def test_reads_beyond_a_limit_are_refused(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            for keys in (["k"] * (OPERATIONS_MAX + 1), [""], ["k" * (KEY_BYTES_MAX + 1)]):
                with pytest.raises(LimitError):
                    await registry.read(keys)

    run(scenario())


def test_commit_over_several_keys_is_all_or_nothing(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine, 2) as (a, b):
            absent = [Guard("r/a", 0), Guard("r/b", 0)]
            first = await a.commit(absent, [Put("r/a", b"1"), Put("r/b", b"1")])
            assert first is not None
            assert await b.get("r/a") == KeyValue("r/a", b"1", first)
            assert await b.get("r/b") == KeyValue("r/b", b"1", first)
            assert await b.commit(absent, [Put("r/c", b"1")]) is None
            half = [Guard("r/a", first), Guard("r/b", first + 1)]
            assert await b.commit(half, [Put("r/a", b"2"), Delete("r/b")]) is None
            assert await a.get("r/a") == KeyValue("r/a", b"1", first)
            whole = [Guard("r/a", first), Guard("r/b", first)]
            second = await b.commit(whole, [Put("r/a", b"2"), Delete("r/b")])
            assert second is not None
            assert second > first
            assert (await a.list("r/")).entries == (KeyValue("r/a", b"2", second),)
            assert await a.commit([Guard("r/b", 0)], [Put("r/b", b"3")]) is not None

    run(scenario())


def test_commit_that_changes_nothing_makes_no_revision(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            revision = await _put(registry, "k", b"1")
            assert await registry.commit([Guard("k", revision)], []) == revision
            assert await registry.commit([], [Delete("absent")]) == revision
            assert (await registry.list("")).revision == revision

    run(scenario())


def test_list_is_by_prefix_in_order_and_of_one_revision(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            keys = ["a", "b", "b/", "b/1", "b/\U0010ffff", "b/é", "b0", "c"]
            revision = await registry.commit([], [Put(key, key.encode()) for key in keys])
            assert revision is not None
            assert [entry.key for entry in (await registry.list("")).entries] == sorted(keys)
            below = await registry.list("b/")
            assert [entry.key for entry in below.entries] == sorted(
                key for key in keys if key.startswith("b/")
            )
            assert below.revision == revision
            assert (await registry.list("nothing")).entries == ()
            assert await registry.get("b/") == KeyValue("b/", b"b/", revision)
            assert await registry.get("b/2") is None

    run(scenario())


@pytest.mark.slow
def test_list_of_many_entries_is_whole(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            for start in range(0, 640, OPERATIONS_MAX):
                numbers = range(start, start + OPERATIONS_MAX)
                await registry.commit([], [Put(f"n/{number:04}", b"x") for number in numbers])
            entries = (await registry.list("n/")).entries
            assert [entry.key for entry in entries] == [f"n/{number:04}" for number in range(640)]

    run(scenario())


def test_no_increment_is_lost_between_connections(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine, 4) as registries:
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                for registry in registries:
                    group.create_task(registry_worker.increment(registry, "count", 10))
            entry = await registries[0].get("count")
            assert entry is not None
            assert entry.value == b"40"

    run(scenario())


def _worker(engine: Engine, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, registry_worker.__file__, engine.url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


@pytest.mark.slow
def test_no_increment_is_lost_between_processes(engine: Engine) -> None:
    workers = [_worker(engine, "increment", "count", "25") for _ in range(3)]
    try:
        for worker in workers:
            worker.communicate(timeout=60)
            assert worker.returncode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()

    async def scenario() -> None:
        async with opened(engine) as (registry,):
            entry = await registry.get("count")
            assert entry is not None
            assert entry.value == b"75"

    run(scenario())


def test_watch_begins_with_the_state_and_shows_commits_whole_and_in_order(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine, 2) as (a, b):
            await _put(a, "w/old", b"0")
            await _put(a, "other", b"0")
            watched = Watched(b, "w/")
            (reset,) = await watched.next()
            assert isinstance(reset, Reset)
            assert [entry.key for entry in reset.snapshot.entries] == ["w/old"]
            for number in range(20):
                value = b"%d" % number
                await a.commit([], [Put("w/x", value), Put("w/y", value), Put("out", value)])
            await a.commit([], [Delete("w/old"), Put("w/end", b"1")])
            await watched.until(**{"w/end": b"1"})
            assert watched.value("w/x") == watched.value("w/y") == b"19"
            assert set(watched.state) == {"w/x", "w/y", "w/end"}
            last = 0
            for batch in watched.batches[1:]:
                revisions = [
                    change.entry.revision if isinstance(change, Changed) else change.revision
                    for change in batch
                    if not isinstance(change, Reset)
                ]
                assert revisions == sorted(revisions)
                assert revisions[0] > last, "a commit was split over two batches"
                last = revisions[-1]
            await watched.close()

    run(scenario())


def test_watch_ends_when_the_registry_is_closed(engine: Engine) -> None:
    async def scenario() -> None:
        registry = engine.open()
        batches = 0

        async def follow() -> None:
            nonlocal batches
            async for _ in registry.watch(""):
                batches += 1
                begun.set()

        begun = asyncio.Event()
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            group.create_task(follow())
            await begun.wait()
            await registry.close()
        assert batches == 1
        with pytest.raises(RegistryUnavailableError, match="closed"):
            await registry.get("k")

    run(scenario())


def test_cancelled_watch_leaves_the_registry_usable(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            watched = Watched(registry, "")
            await watched.next()
            waiter = asyncio.create_task(watched.next())
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert await _put(registry, "k", b"1")

    run(scenario())


def test_session_keys_live_while_it_does(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine, 2) as (a, b):
            session = await a.session(TTL_S)
            operations = [Put("s/leased", b"1", leased=True), Put("s/kept", b"1")]
            assert await a.commit([], operations, session=session)
            watched = Watched(b, "s/")
            await watched.until(**{"s/leased": b"1"})
            assert not session.lost
            await session.close()
            assert session.lost
            assert await a.get("s/leased") is None
            await watched.until(**{"s/leased": None, "s/kept": b"1"})
            with pytest.raises(SessionLostError):
                await a.commit([], operations, session=session)
            await session.close()
            await watched.close()

    run(scenario())


@pytest.mark.slow
def test_session_is_renewed_until_its_connection_is_closed(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (b,):
            a = engine.open()
            session = await a.session(RENEWED_TTL_S)
            await a.commit([], [Put("s", b"1", leased=True)], session=session)
            watched = Watched(b, "s")
            await watched.next()
            async with asyncio.TaskGroup() as group:
                lost = group.create_task(session.wait_lost())
                done, _ = await asyncio.wait({lost}, timeout=1.4 * RENEWED_TTL_S)
                assert not done, "lost although it was renewed"
                assert await b.get("s") is not None
                await a.close()
            assert session.lost
            await watched.until(s=None)
            await watched.close()

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_lease_of_a_process_that_is_gone_runs_out(engine: Engine, how: str) -> None:
    """A stopped process that goes on knows at its first look that it has lost its session."""

    async def follow_until_gone() -> None:
        async with opened(engine) as (registry,):
            watched = Watched(registry, "s")
            await watched.until(s=b"mine")
            worker.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            begun = time.monotonic()
            await watched.until(s=None)
            # The last renewal was at most a third of the ttl ago.
            assert TTL_S * 0.6 < time.monotonic() - begun < TTL_S + leeway(3.0)
            await watched.close()

    worker = _worker(engine, "hold", "s", str(TTL_S))
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "held\n"
        run(follow_until_gone())
        if how == "stopped":
            worker.send_signal(signal.SIGCONT)
            output, _ = worker.communicate("go on\n", timeout=20)
            assert json.loads(output) == {"lost": True, "refused": True}
    finally:
        worker.kill()
        worker.communicate()


def test_session_of_another_connection_is_refused(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine, 2) as (a, b):
            session = await a.session(TTL_S)
            with pytest.raises(LimitError, match="not one of this registry"):
                await b.commit([], [Put("k", b"1", leased=True)], session=session)

    run(scenario())


def test_put_without_lease_frees_the_key_from_the_session(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            session = await registry.session(TTL_S)
            await registry.commit([], [Put("k", b"1", leased=True)], session=session)
            await _put(registry, "k", b"2")
            await session.close()
            entry = await registry.get("k")
            assert entry is not None
            assert entry.value == b"2"

    run(scenario())


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([Put("", b"")], "not empty"),
        ([Put("k" * (KEY_BYTES_MAX + 1), b"")], "key of 1025 bytes"),
        ([Put("\ud800", b"")], "not valid Unicode"),
        ([Put("k", b"v" * (VALUE_BYTES_MAX + 1))], "value of 1048577 bytes"),
        ([Put("k", b"1"), Delete("k")], "twice"),
        ([Put("k", b"1", leased=True)], "without a session"),
        ([Put(f"k{n}", b"") for n in range(OPERATIONS_MAX + 1)], "129 operations"),
        ([Put(f"k{n}", bytes(VALUE_BYTES_MAX)) for n in range(2)], "commit of 2097156 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commit_over_a_limit_is_refused(
    engine: Engine, operations: list[Put | Delete], message: str
) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            with pytest.raises(LimitError, match=message):
                await registry.commit([], operations)

    run(scenario())


def test_commit_at_every_limit_is_carried_out(engine: Engine) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            # Keys of guards and operations count, too.
            keys = [f"{n:0{KEY_BYTES_MAX}}" for n in range(OPERATIONS_MAX)]
            left = COMMIT_BYTES_MAX - 2 * OPERATIONS_MAX * KEY_BYTES_MAX
            values = [bytes(left // OPERATIONS_MAX)] * OPERATIONS_MAX
            guards = [Guard(key, 0) for key in keys]
            puts = [Put(key, value) for key, value in zip(keys, values, strict=True)]
            assert await registry.commit(guards, puts) is not None
            assert len((await registry.list("0")).entries) == OPERATIONS_MAX
            assert await registry.commit([], [Put("k", bytes(VALUE_BYTES_MAX))]) is not None
            entry = await registry.get("k")
            assert entry is not None
            assert len(entry.value) == VALUE_BYTES_MAX

    run(scenario())


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf")])
def test_lease_of_no_sensible_length_is_refused(engine: Engine, ttl_s: float) -> None:
    async def scenario() -> None:
        async with opened(engine) as (registry,):
            with pytest.raises(LimitError):
                await registry.session(ttl_s)

    run(scenario())
