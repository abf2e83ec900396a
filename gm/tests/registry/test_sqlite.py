"""The file is locked, moved, replaced, damaged, or its disk is full."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from loops import run
from waiting import leeway

from ringmq_gm.registry.base import (
    AddressError,
    Changed,
    CommitUnknownError,
    KeyValue,
    Put,
    RegistryUnavailableError,
    RegistryWentBackError,
    Reset,
)
from ringmq_gm.registry.sqlite import SqliteRegistry
from ringmq_gm.registry.sqlite.connection import Gate

DEADLINE_S = 0.5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "registry.db"


def _registry(path: Path) -> SqliteRegistry:
    path.parent.mkdir(exist_ok=True)
    return SqliteRegistry(path, deadline_s=DEADLINE_S)


def _write_something_else(path: Path, content: str) -> None:
    path.parent.mkdir()
    if content == "text":
        path.write_bytes(b"This is not a database.\n" * 100)
    else:
        with sqlite3.connect(path) as raw:
            raw.execute("CREATE TABLE mine (x)")
        raw.close()


def _exists(path: Path) -> bool:
    return path.exists()


def test_commit_waits_for_a_lock_and_gives_up_at_its_deadline(path: Path) -> None:
    async def scenario() -> None:
        registry = _registry(path)
        revision = await registry.commit([], [Put("k", b"1")])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match="locked"):
            await registry.commit([], [Put("k", b"2")])
        assert time.monotonic() - begun < leeway(2 * DEADLINE_S)
        # Readers don't care, and nothing of it was carried out.
        entry = await registry.get("k")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"1", revision)
        waiting = asyncio.create_task(registry.commit([], [Put("k", b"3")]))
        await asyncio.sleep(0.05)
        other.execute("ROLLBACK")
        assert await waiting == (revision or 0) + 1
        other.close()
        await registry.close()

    run(scenario())


def test_cancelled_commit_that_still_waits_is_never_made(path: Path) -> None:
    async def scenario() -> None:
        registry = _registry(path)
        await registry.commit([], [Put("k", b"1")])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(registry.commit([], [Put("k", b"2")]))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other.close()
        # The writer's thread has gone through the cancelled one before this one.
        assert await registry.commit([], [Put("other", b"1")]) == 2
        entry = await registry.get("k")
        assert entry is not None
        assert entry.value == b"1"
        await registry.close()

    run(scenario())


@pytest.mark.parametrize("what", ["file", "folder"])
def test_deleted_registry_is_unavailable_and_not_made_anew(path: Path, what: str) -> None:
    """Going on with the unlinked file, or with a new one, would make two registries of one."""

    async def scenario() -> None:
        registry = _registry(path)
        await registry.commit([], [Put("k", b"1")])
        aside = path.parent.with_name("aside")
        if what == "folder":
            path.parent.rename(aside)
        else:
            shutil.copytree(path.parent, aside)
            os.unlink(path)
        for _ in range(2):
            with pytest.raises(RegistryUnavailableError):
                await registry.get("k")
            with pytest.raises(RegistryUnavailableError):
                await registry.commit([], [Put("k", b"2")])
        assert not _exists(path)
        # Back in its place, it is the registry again.
        shutil.rmtree(path.parent, ignore_errors=True)
        aside.rename(path.parent)
        entry = await registry.get("k")
        assert entry is not None
        assert entry.value == b"1"
        await registry.close()

    run(scenario())


def test_another_registry_in_its_place_is_refused(path: Path) -> None:
    async def scenario() -> None:
        registry = _registry(path)
        await registry.commit([], [Put("k", b"1")])
        path.parent.rename(path.parent.with_name("aside"))
        impostor = _registry(path)
        await impostor.commit([], [Put("k", b"other")])
        # First the connection finds its file gone, then the next one finds the other.
        with pytest.raises(RegistryUnavailableError):
            await registry.get("k")
        with pytest.raises(RegistryUnavailableError, match="another file has taken its place"):
            await registry.get("k")
        await impostor.close()
        await registry.close()

    run(scenario())


@pytest.mark.parametrize("content", ["text", "database"])
def test_something_else_in_its_place_is_a_registry_that_is_away(path: Path, content: str) -> None:
    """It was the registry, and may be put back: whoever uses it goes on without it meanwhile."""

    async def scenario() -> None:
        registry = _registry(path)
        await registry.commit([], [Put("k", b"1")])
        watch = registry.watch("k")
        assert isinstance((await anext(watch))[0], Reset)
        aside = path.parent.with_name("aside")
        path.parent.rename(aside)
        _write_something_else(path, content)
        following = asyncio.ensure_future(anext(watch))
        for _ in range(3):
            with pytest.raises(RegistryUnavailableError):
                await registry.get("k")
            with pytest.raises(RegistryUnavailableError):
                await registry.commit([], [Put("k", b"2")])
        await asyncio.wait({following}, timeout=0.1)
        assert not following.done()
        shutil.rmtree(path.parent)
        aside.rename(path.parent)
        async with asyncio.timeout(leeway(10)):
            assert isinstance((await following)[0], Reset)
        await registry.close()

    run(scenario())


def test_a_key_that_is_no_text_is_passed_over(path: Path) -> None:
    """Nobody but another program writes one; it must not stop who reads the others."""

    async def scenario() -> None:
        registry = _registry(path)
        await registry.commit([], [Put("k/1", b"1")])
        watch = registry.watch("k/")
        assert isinstance((await anext(watch))[0], Reset)
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("INSERT INTO entries VALUES (?, 'x', 2, NULL)", (b"k/\xff",))
            raw.execute("INSERT INTO changes VALUES (2, ?, 7)", (b"k/\xff",))
            raw.execute("UPDATE meta SET revision = 2")
        assert await registry.commit([], [Put("k/2", b"2")]) == 3
        async with asyncio.timeout(leeway(10)):
            (change,) = await anext(watch)
        assert change == Changed(KeyValue("k/2", b"2", 3))
        assert [entry.key for entry in (await registry.list("k/")).entries] == ["k/1", "k/2"]
        await registry.close()

    run(scenario())


def _copied(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _exchange(path: Path, copy: Path) -> None:
    """The files of the registry are those of the copy."""
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    os.replace(copy, path)


def _restore(path: Path, copy: Path) -> None:
    """SQLite's own way: the file is the same, with other contents."""
    _copied(copy, path)


@pytest.mark.logs("the registry went back")
@pytest.mark.parametrize("writes", [0, 1, 9], ids=["no writes", "as many writes", "more writes"])
@pytest.mark.parametrize("put_back", [_exchange, _restore])
def test_a_registry_that_was_put_back_is_refused_for_good(
    path: Path, put_back: Callable[[Path, Path], None], writes: int
) -> None:
    """With views that are older than those in use it would let a second ring begin."""

    async def scenario() -> None:
        registry, reader = _registry(path), _registry(path)
        await registry.commit([], [Put("k", b"1"), Put("other", b"1")])
        _copied(path, path.with_name("copy"))
        await registry.commit([], [Put("k", b"2")])
        assert (await reader.list("")).revision == 2
        put_back(path, path.with_name("copy"))
        other = _registry(path)
        for _ in range(writes):
            await other.commit([], [Put("other", b"2")])
        if put_back is _exchange:
            # Perhaps: the connection finds its file gone, and the next one finds the copy.
            for each in (registry, reader):
                with pytest.raises(RegistryUnavailableError):
                    await each.get("k")
        # One of them knows its own commit, the other what it has read.
        for each in (registry, reader):
            with pytest.raises(RegistryWentBackError, match="went back"):
                await each.get("k")
            for _ in range(9):
                await other.commit([], [Put("k", b"3")])
            with pytest.raises(RegistryWentBackError):
                await each.list("")
            with pytest.raises(RegistryWentBackError):
                await each.commit([], [Put("k", b"4")])
        assert await other.get("k") is not None
        for each in (registry, reader, other):
            await each.close()

    run(scenario())


def test_a_registry_that_has_forgotten_revisions_is_trusted(path: Path) -> None:
    async def scenario() -> None:
        registry, other = _registry(path), SqliteRegistry(path, revisions_kept=2)
        await registry.commit([], [Put("k", b"1")])
        for _ in range(5):
            await other.commit([], [Put("k", b"2")])
            # Reads and commits of several threads overtake each other.
            await asyncio.gather(
                *(registry.get("k") for _ in range(5)), registry.commit([], [Put("k", b"3")])
            )
        for _ in range(5):
            await other.commit([], [Put("k", b"4")])
        found = await registry.get("k")
        assert found is not None
        assert found.value == b"4"
        await registry.close()
        await other.close()

    run(scenario())


def test_watch_goes_on_with_a_reset_after_the_registry_was_away(path: Path) -> None:
    async def scenario() -> None:
        registry, other = _registry(path), _registry(path)
        await registry.commit([], [Put("k", b"1")])
        watch = registry.watch("")
        assert isinstance((await anext(watch))[0], Reset)
        path.parent.rename(path.parent.with_name("aside"))
        waiting = asyncio.ensure_future(anext(watch))
        with pytest.raises(RegistryUnavailableError):
            await registry.get("k")
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done
        path.parent.with_name("aside").rename(path.parent)
        assert await other.commit([], [Put("k", b"2")]) is not None
        async with asyncio.timeout(30):
            (change,) = await waiting
        assert isinstance(change, Reset)
        await registry.close()
        await other.close()

    run(scenario())


def test_watch_that_fell_behind_the_kept_revisions_begins_anew(path: Path) -> None:
    async def scenario() -> None:
        path.parent.mkdir()
        registry = SqliteRegistry(path, revisions_kept=5)
        await registry.commit([], [Put("k", b"0")])
        watch = registry.watch("")
        await anext(watch)
        for number in range(5):
            await registry.commit([], [Put("k", b"%d" % number)])
        (change,) = await anext(watch)
        assert isinstance(change, Changed)
        for number in range(6):
            await registry.commit([], [Put("k", b"%d" % number)])
        (change,) = await anext(watch)
        assert isinstance(change, Reset)
        assert change.snapshot.entries[0].value == b"5"
        await registry.close()
        with sqlite3.connect(path) as raw:
            assert raw.execute("SELECT COUNT(*) FROM changes").fetchone() == (5,)
        raw.close()

    run(scenario())


def test_lease_from_before_a_reboot_has_run_out(path: Path) -> None:
    """The clock has begun anew, so the lease claims to be good for far too long."""

    async def scenario() -> None:
        registry = _registry(path)
        session = await registry.session(5.0)
        await registry.commit([], [Put("k", b"1", leased=True)], session=session)
        with sqlite3.connect(path) as raw:
            raw.execute("UPDATE leases SET expires = expires + 1000")
        raw.close()
        watch = registry.watch("")
        async with asyncio.timeout(30):
            async for _ in watch:
                if await registry.get("k") is None:
                    break
        await registry.close()

    run(scenario())


@pytest.mark.parametrize("content", ["text", "database"])
def test_file_that_is_something_else_is_refused_and_left_alone(path: Path, content: str) -> None:
    _write_something_else(path, content)
    before = path.read_bytes()

    async def scenario() -> None:
        registry = _registry(path)
        with pytest.raises(AddressError):
            await registry.get("k")
        await registry.close()

    run(scenario())
    assert path.read_bytes() == before


def test_missing_folder_is_unavailable(tmp_path: Path) -> None:
    async def scenario() -> None:
        registry = SqliteRegistry(tmp_path / "absent" / "registry.db")
        with pytest.raises(RegistryUnavailableError):
            await registry.get("k")
        await registry.close()

    run(scenario())


@pytest.mark.slow
def test_commit_that_hangs_after_it_began_is_of_unknown_outcome(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that doesn't answer: the gate has been passed, the result hasn't come."""
    enter = Gate.enter

    def enter_and_hang(gate: Gate) -> None:
        enter(gate)
        time.sleep(3 * DEADLINE_S)

    async def scenario() -> None:
        registry = _registry(path)
        await registry.commit([], [Put("k", b"1")])
        monkeypatch.setattr(Gate, "enter", enter_and_hang)
        with pytest.raises(CommitUnknownError):
            await registry.commit([], [Put("k", b"2")])
        monkeypatch.setattr(Gate, "enter", enter)
        # Queued behind the one that hangs, and given up before it began.
        with pytest.raises(RegistryUnavailableError):
            await registry.commit([], [Put("k", b"3")])
        await registry.close()

    run(scenario())


def test_gate_lets_one_of_them_win() -> None:
    gate = Gate()
    gate.enter()
    assert not gate.shut()
    gate = Gate()
    assert gate.shut()
    with pytest.raises(RegistryUnavailableError):
        gate.enter()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "ringmq-test", str(folder)]
    able = os.geteuid() == 0 and shutil.which("mount") is not None
    if not able or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("can't mount a small file system (wants root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_unavailable_and_nothing_was_changed(small_disk: Path) -> None:
    async def scenario() -> None:
        registry = SqliteRegistry(small_disk / "registry.db", deadline_s=DEADLINE_S)
        assert await registry.commit([], [Put("k", b"1")]) == 1
        with pytest.raises(RegistryUnavailableError, match="full"):
            await registry.commit([], [Put("k", bytes(512 * 1024))])
        entry = await registry.get("k")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"1", 1)
        assert await registry.commit([], [Put("k", b"2")]) == 2
        await registry.close()

    run(scenario())
