"""Etcd is killed, stopped, cut off, compacted or replaced."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import pytest
from etcd_gateway import silent_gateway
from etcd_server import EtcdCluster, free_ports
from loops import run
from waiting import leeway, until

from ringmq_gm.registry.base import (
    Change,
    Changed,
    CommitUnknownError,
    Delete,
    Guard,
    KeyValue,
    Put,
    Registry,
    RegistryUnavailableError,
    RegistryWentBackError,
    Reset,
    Snapshot,
)
from ringmq_gm.registry.etcd import (
    DEADLINE_S,
    WATCH_QUIET_MAX,
    WATCH_QUIET_S,
    EtcdRegistry,
    _Follower,
)
from ringmq_gm.registry.etcdpb import rpc_pb2, rpc_pb2_grpc
from ringmq_gm.registry.sessions import LeasedSession
from ringmq_gm.registry.url import open_registry

pytestmark = pytest.mark.slow

WAIT_S = 20.0
# Etcd's database is 2 MiB at first. Of so many commits at once some use up its quota.
ETCD_QUOTA_BYTES = 4 * 1024 * 1024
FILLING_BYTES = 60_000
AT_ONCE = 16
R = TypeVar("R")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd", size=3) as cluster:
        yield cluster


async def _until(watch: AsyncIterator[Sequence[Change]], key: str, value: bytes) -> list[Change]:
    """Everything that the watch brings up to this value of `key`."""
    seen: list[Change] = []
    async with asyncio.timeout(WAIT_S):
        async for batch in watch:
            for change in batch:
                seen.append(change)
                entries = change.snapshot.entries if isinstance(change, Reset) else ()
                if isinstance(change, Changed):
                    entries = (change.entry,)
                if any((entry.key, entry.value) == (key, value) for entry in entries):
                    return seen
    raise AssertionError("the watch has ended")


async def _sometime(call: Callable[[], Awaitable[R]]) -> R:
    """What the registry answers, however long it is away; here a repetition does no harm."""
    async with asyncio.timeout(leeway(WAIT_S)):
        while True:
            try:
                return await call()
            except (RegistryUnavailableError, CommitUnknownError):
                continue


async def _commit_sometime(registry: Registry, key: str, value: bytes) -> None:
    assert await _sometime(lambda: registry.commit([], [Put(key, value)])) is not None


async def _entry_sometime(registry: Registry, key: str) -> KeyValue:
    entry = await _sometime(lambda: registry.get(key))
    assert entry is not None
    return entry


async def _enable_authentication(endpoint: str) -> None:
    root = b"\x0a\x04root"
    async with grpc.aio.insecure_channel(endpoint) as channel:
        for method, request in (
            ("RoleAdd", root),
            ("UserAdd", root + b"\x12\x06secret"),
            ("UserGrantRole", root + b"\x12\x04root"),
            ("AuthEnable", b""),
        ):
            call: Any = channel.unary_unary(f"/etcdserverpb.Auth/{method}")
            await call(request, timeout=5)


async def _compact(endpoint: str, revision: int) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        request = rpc_pb2.CompactionRequest(revision=revision, physical=True)
        await rpc_pb2_grpc.KVStub(channel).Compact(request, timeout=5)


def test_a_key_that_is_no_text_is_passed_over(etcd: EtcdCluster) -> None:
    """Nobody but another program writes one; it must not stop who reads the others."""

    async def scenario() -> None:
        registry = open_registry(etcd.url)
        assert isinstance(registry, EtcdRegistry)
        await registry.commit([], [Put("k/1", b"1")])
        watch = registry.watch("k/")
        await _until(watch, "k/1", b"1")
        async with grpc.aio.insecure_channel(etcd.endpoints[0]) as channel:
            odd = rpc_pb2.PutRequest(key=registry.prefix + b"k/\xff", value=b"x")
            put: Any = channel.unary_unary("/etcdserverpb.KV/Put")
            await put(odd.SerializeToString(), timeout=5)
        await registry.commit([], [Put("k/2", b"2")])
        seen = await _until(watch, "k/2", b"2")
        assert [change.entry.key for change in seen if isinstance(change, Changed)] == ["k/2"]
        assert [entry.key for entry in (await registry.list("k/")).entries] == ["k/1", "k/2"]
        await registry.close()

    run(scenario())


async def _refused(call: Callable[[], Awaitable[object]], why: str) -> None:
    """Each call fails as with an etcd that is away, at last for this reason. On a busy machine some
    have no answer within the deadline first."""

    async def for_that_reason() -> bool:
        with pytest.raises(RegistryUnavailableError) as refused:
            await call()
        return why in str(refused.value)

    await until(for_that_reason, why)


def test_an_etcd_that_wants_a_password_is_away(etcd: EtcdCluster) -> None:
    """Somebody has enabled its authentication: whoever uses it goes on without it."""

    async def scenario() -> None:
        registry = open_registry(etcd.url)
        await registry.commit([], [Put("k", b"1")])
        await _enable_authentication(etcd.endpoints[0])
        await _refused(lambda: registry.get("k"), "user name is empty")
        await _refused(lambda: registry.commit([], [Put("k", b"2")]), "user name is empty")
        following = asyncio.ensure_future(anext(registry.watch("")))
        await asyncio.wait({following}, timeout=2 * DEADLINE_S)
        assert not following.done()
        await registry.close()
        await asyncio.gather(following, return_exceptions=True)

    run(scenario())


def test_killed_etcd_is_unavailable_within_the_deadline_and_works_again(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        registry = open_registry(etcd.url)
        await registry.commit([], [Put("k", b"1")])
        watch = registry.watch("")
        await _until(watch, "k", b"1")
        session = await registry.session(30.0)
        await registry.commit([], [Put("leased", b"1", leased=True)], session=session)
        await asyncio.to_thread(etcd.kill)
        begun = time.monotonic()
        with pytest.raises(RegistryUnavailableError):
            await registry.get("k")
        assert time.monotonic() - begun < leeway(DEADLINE_S + 1)
        begun = time.monotonic()
        with pytest.raises((RegistryUnavailableError, CommitUnknownError)):
            await registry.commit([], [Put("k", b"2")])
        assert time.monotonic() - begun < leeway(DEADLINE_S + 1)
        await asyncio.to_thread(etcd.start)
        await _commit_sometime(registry, "k", b"3")
        seen = await _until(watch, "k", b"3")
        assert any(isinstance(change, Reset) for change in seen)
        # Its lease was longer than the absence.
        assert not session.lost
        assert await registry.get("leased") is not None
        await registry.close()

    run(scenario())


def test_commit_to_an_etcd_that_hangs_is_of_unknown_outcome(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a commit that comes a little later asks a question first, and isn't sent at all.
    monkeypatch.setattr("ringmq_gm.registry.etcd_history.PROVEN_S", 60.0)

    async def scenario() -> None:
        registry = open_registry(etcd.url)
        await _commit_sometime(registry, "k", b"1")
        before = await _entry_sometime(registry, "k")
        etcd.stop()
        begun = time.monotonic()
        with pytest.raises(CommitUnknownError):
            await registry.commit([], [Put("k", b"2")])
        assert time.monotonic() - begun < leeway(DEADLINE_S + 1)
        with pytest.raises(RegistryUnavailableError):
            await registry.get("k")
        etcd.resume()
        # It was in etcd's socket, with the news that nobody waits for it: either is right. So is
        # either order of this commit and the next one, which etcd works on side by side.
        await _commit_sometime(registry, "end", b"1")
        entry = await _entry_sometime(registry, "k")
        assert entry == before or (entry.value == b"2" and entry.revision > before.revision)
        await registry.close()

    run(scenario())


def test_call_that_ends_well_without_an_answer_has_not_succeeded(
    etcd: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """What may be repeated is; of a commit nobody knows whether it was carried out."""

    async def scenario() -> None:
        async with silent_gateway(etcd.endpoints[0]) as gateway:
            registry = open_registry(f"etcd://127.0.0.1:{gateway.port}/silent")
            await registry.commit([], [Put("key", b"1")])
            gateway.silent = 3
            entry = await registry.get("key")
            assert entry is not None
            assert entry.value == b"1"
            gateway.silent = 1
            snapshot = await registry.list("")
            assert [each.value for each in snapshot.entries] == [b"1"]
            # It is carried out; the guard of a commit that was repeated would no longer hold.
            gateway.silent_paths = {"/etcdserverpb.KV/Txn"}
            gateway.silent = 1
            with pytest.raises(CommitUnknownError, match="without an answer"):
                await registry.commit([Guard("key", entry.revision)], [Put("key", b"2")])
            entry = await registry.get("key")
            assert entry is not None
            assert entry.value == b"2"
            gateway.silent_paths = {"/etcdserverpb.Lease/LeaseGrant"}
            gateway.silent = 1
            session = await registry.session(5.0)
            gateway.silent_paths = {"/etcdserverpb.Lease/LeaseRevoke"}
            gateway.silent = 1
            await session.close()
            assert gateway.silent == 0
            await registry.close()

    run(scenario())
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_commit_that_is_answered_before_the_leader_goes_has_not_failed(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took so long that etcd is asked for its history behind it; etcd has no leader by then,
    and refuses that question."""
    monkeypatch.setattr("ringmq_gm.registry.etcd_history.PROVEN_S", 0.0)

    async def scenario() -> None:
        async with silent_gateway(etcd.endpoints[0]) as gateway:
            registry = open_registry(f"etcd://127.0.0.1:{gateway.port}/silent")
            await registry.commit([], [Put("key", b"1")])
            gateway.leaderless_after_txn = True
            with pytest.raises(CommitUnknownError, match="no leader"):
                await registry.commit([], [Put("key", b"2")])
            await registry.close()
        direct = open_registry(f"etcd://{etcd.endpoints[0]}/silent")
        entry = await direct.get("key")
        assert entry is not None
        assert entry.value == b"2"
        await direct.close()

    run(scenario())


def test_commit_that_etcd_has_no_space_for_may_have_been_carried_out(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with silent_gateway(etcd.endpoints[0]) as gateway:
            registry = open_registry(f"etcd://127.0.0.1:{gateway.port}/silent")
            await registry.commit([], [Put("key", b"1")])
            entry = await _entry_sometime(registry, "key")
            gateway.fills_up = True
            with pytest.raises(CommitUnknownError, match="space exceeded"):
                await registry.commit([Guard("key", entry.revision)], [Put("key", b"2")])
            with pytest.raises(CommitUnknownError, match="space exceeded"):
                await registry.commit([Guard("new", 0)], [Put("new", b"2")])
            with pytest.raises(CommitUnknownError, match="space exceeded"):
                await registry.commit([], [Put("unguarded", b"2")])
            await registry.close()

    run(scenario())


def test_commit_that_fills_etcd_up_is_not_told_to_have_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Etcd answers "database space exceeded" to transactions that it refuses, and also to those
    that it has carried out while others that were under way with them used up its quota."""
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(ETCD_QUOTA_BYTES))

    async def commit(registry: Registry, key: str) -> Exception | None:
        try:
            await registry.commit([Guard(key, 0)], [Put(key, bytes(FILLING_BYTES))])
        except (RegistryUnavailableError, CommitUnknownError) as error:
            return error
        return None

    async def scenario(registry: Registry) -> None:
        await registry.commit([], [Put("before", b"1")])
        before = await _entry_sometime(registry, "before")
        faults: dict[str, Exception] = {}
        for batch in itertools.count():
            keys = [f"{batch}/{number}" for number in range(AT_ONCE)]
            ended = await asyncio.gather(*(commit(registry, key) for key in keys))
            faults = {key: error for key, error in zip(keys, ended, strict=True) if error}
            if faults:
                break
        # Nearly always some are.
        carried_out = {key for key in faults if await registry.get(key) is not None}
        for key, error in faults.items():
            assert "space exceeded" in str(error)
            assert isinstance(error, CommitUnknownError) == (key in carried_out)
        # It is full from here on, and carries nothing out: that is certain then.
        guards = [Guard("before", before.revision)]
        with pytest.raises(RegistryUnavailableError, match="space exceeded"):
            await registry.commit(guards, [Put("before", bytes(FILLING_BYTES))])
        await registry.close()

    with EtcdCluster(tmp_path / "etcd") as etcd:
        run(scenario(open_registry(etcd.url)))


def test_full_etcd_keeps_leases_and_deletes_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(ETCD_QUOTA_BYTES))

    async def fill(registry: Registry) -> None:
        for number in itertools.count():
            await registry.commit([], [Put(f"{number}", bytes(FILLING_BYTES))])

    async def scenario(registry: Registry) -> None:
        session = await registry.session(2.0)
        assert isinstance(session, LeasedSession)
        with pytest.raises((RegistryUnavailableError, CommitUnknownError), match="space exceeded"):
            await fill(registry)
        good_until = session._until
        await until(lambda: session._until > good_until)
        with pytest.raises(RegistryUnavailableError):
            await registry.session(2.0)
        entry = await _entry_sometime(registry, "0")
        assert await registry.commit([Guard("0", entry.revision)], [Delete("0")]) is not None
        await registry.close()

    with EtcdCluster(tmp_path / "etcd") as etcd:
        run(scenario(open_registry(etcd.url)))


def test_what_etcd_has_answered_is_told_though_the_last_attempt_was_cut_short(
    etcd: EtcdCluster,
) -> None:
    async def scenario() -> None:
        async with silent_gateway(etcd.endpoints[0]) as gateway:
            endpoint = f"127.0.0.1:{gateway.port}"
            registry = EtcdRegistry([endpoint], prefix="silent/", deadline_s=0.6)
            gateway.grants_refused = 2
            with pytest.raises(RegistryUnavailableError, match="space exceeded"):
                await registry.session(2.0)
            await registry.close()

    run(scenario())


def test_session_without_etcd_is_lost_by_the_holders_clock(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        registry = open_registry(etcd.url)
        session = await registry.session(2.0)
        await registry.commit([], [Put("s", b"1", leased=True)], session=session)
        begun = time.monotonic()
        await asyncio.to_thread(etcd.kill)
        async with asyncio.timeout(WAIT_S):
            await session.wait_lost()
        assert time.monotonic() - begun < leeway(2.5)
        with pytest.raises(RegistryUnavailableError):
            await session.close()
        await asyncio.to_thread(etcd.start)
        watch = registry.watch("s")
        async with asyncio.timeout(WAIT_S):
            async for _ in watch:
                if await registry.get("s") is None:
                    break
        await registry.close()

    run(scenario())


def test_watch_survives_compaction_and_a_restart_at_once(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        registry, other = open_registry(etcd.url), open_registry(etcd.url)
        await registry.commit([], [Put("k", b"1"), Put("gone", b"1")])
        watch = registry.watch("")
        await _until(watch, "k", b"1")
        # The watch is not being read while its revisions disappear.
        for number in range(50):
            revision = await other.commit([], [Put("k", b"%d" % number)])
        await _compact(etcd.endpoints[0], revision or 0)
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.start)
        await _commit_sometime(other, "k", b"end")
        await _until(watch, "k", b"end")
        assert await registry.get("gone") is not None
        await registry.close()
        await other.close()

    run(scenario())


def test_watch_is_opened_again_if_etcd_goes_in_its_first_write(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of that write once ended every node that met it."""
    send = _Follower._send

    async def broken(follower: _Follower, request: rpc_pb2.WatchRequest) -> None:
        monkeypatch.setattr(_Follower, "_send", send)
        # As grpc.aio raises it if the connection goes while the message is handed over.
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "reset by peer")

    async def scenario() -> None:
        registry = open_registry(etcd.url)
        await registry.commit([], [Put("k", b"1")])
        monkeypatch.setattr(_Follower, "_send", broken)
        await _until(registry.watch(""), "k", b"1")
        await registry.close()

    run(scenario())


def test_list_that_is_overtaken_by_compaction_begins_anew(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        registry = EtcdRegistry(etcd.endpoints, prefix="test/")
        for start in range(0, 512, 128):
            await registry.commit([], [Put(f"{n:03}", b"1") for n in range(start, start + 128)])
        original = registry._range
        pages = 0

        async def compacting(request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
            nonlocal pages
            pages += 1
            response = await original(request)
            if pages == 1:
                revision = await registry.commit([], [Put("000", b"2")])
                await _compact(etcd.endpoints[0], revision or 0)
            return response

        monkeypatch.setattr(registry, "_range", compacting)
        entries = (await registry.list("")).entries
        assert [entry.key for entry in entries] == [f"{n:03}" for n in range(512)]
        assert entries[0].value == b"2"
        await registry.close()

    run(scenario())


def test_commit_in_fragments_arrives_whole(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Etcd cuts the changes that a watch has missed into pieces of about 1.5 MiB."""

    async def scenario() -> None:
        registry = EtcdRegistry(etcd.endpoints, prefix="test/")
        snapshot, response = registry.snapshot, _Follower._response
        fragments = 0

        async def late_snapshot(prefix: bytes) -> Snapshot:
            result = await snapshot(prefix)
            for number in range(5):
                await registry.commit([], [Put(f"{number}/{n}", bytes(9_000)) for n in range(128)])
            return result

        async def counted_response(follower: _Follower) -> rpc_pb2.WatchResponse:
            nonlocal fragments
            result = await response(follower)
            fragments += result.fragment
            return result

        monkeypatch.setattr(registry, "snapshot", late_snapshot)
        monkeypatch.setattr(_Follower, "_response", counted_response)
        watch = registry.watch("")
        assert isinstance((await anext(watch))[0], Reset)
        counts: list[Counter[int]] = []
        async with asyncio.timeout(WAIT_S):
            while sum(count.total() for count in counts) < 5 * 128:
                batch = await anext(watch)
                counts.append(
                    Counter(
                        change.entry.revision for change in batch if isinstance(change, Changed)
                    )
                )
        assert fragments > 0
        for count in counts:
            assert set(count.values()) == {128}, "a commit was split over two batches"
        await registry.close()

    run(scenario())


def test_three_members_stay_usable_while_one_is_dead_or_hangs(three: EtcdCluster) -> None:
    async def scenario() -> None:
        registry = open_registry(three.url)
        session = await registry.session(8.0)
        await registry.commit([], [Put("k", b"0", leased=True)], session=session)
        watch = registry.watch("")
        await _until(watch, "k", b"0")
        # The first one is the one that everything is connected to.
        three.stop(0)
        begun = time.monotonic()
        await _commit_sometime(registry, "k", b"1")
        await _until(watch, "k", b"1")
        assert time.monotonic() - begun < leeway(DEADLINE_S + (WATCH_QUIET_MAX + 2) * WATCH_QUIET_S)
        await asyncio.to_thread(three.kill, 0)
        await _commit_sometime(registry, "k", b"2")
        await _until(watch, "k", b"2")
        assert not session.lost
        await registry.close()

    run(scenario())


def test_member_without_a_leader_answers_nothing_and_its_watch_moves(three: EtcdCluster) -> None:
    """The member is cut off from the others, not from us: it must not be believed."""

    async def scenario() -> None:
        isolated = EtcdRegistry(three.endpoints[:1], prefix="test/")
        await isolated.commit([], [Put("k", b"1")])
        watch = isolated.watch("")
        await _until(watch, "k", b"1")
        await asyncio.to_thread(three.kill, 1)
        await asyncio.to_thread(three.kill, 2)
        begun = time.monotonic()
        with pytest.raises(RegistryUnavailableError):
            await isolated.get("k")
        assert time.monotonic() - begun < leeway(DEADLINE_S + 1)
        with pytest.raises((RegistryUnavailableError, CommitUnknownError)):
            await isolated.commit([], [Put("k", b"2")])
        three.launch(1)
        await asyncio.to_thread(three.start, 2)
        await _commit_sometime(isolated, "k", b"3")
        await _until(watch, "k", b"3")
        await isolated.close()

    run(scenario())


def test_another_cluster_behind_the_address_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        two = EtcdCluster(tmp_path / "two")
        with EtcdCluster(tmp_path / "one") as one:
            registry = EtcdRegistry(
                one.endpoints + two.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S
            )
            # The other doesn't serve yet: it can't be the first that answers.
            await registry.commit([], [Put("k", b"1")])
        with two:
            with pytest.raises(RegistryUnavailableError, match="another cluster"):
                await registry.get("k")
            await registry.close()

    run(scenario())


async def _put_back(etcd: EtcdCluster, path: Path, since: Callable[[], Awaitable[None]]) -> None:
    """Etcd has again what it had before `since`."""
    data, copy = path / "etcd" / "m0", path / "copy"
    await asyncio.to_thread(etcd.kill)
    shutil.copytree(data, copy)
    await asyncio.to_thread(etcd.start)
    await since()
    await asyncio.to_thread(etcd.kill)
    shutil.rmtree(data)
    copy.rename(data)
    await asyncio.to_thread(etcd.start)


@pytest.mark.logs("the registry went back")
def test_an_etcd_that_was_put_back_is_refused_for_good(tmp_path: Path) -> None:
    """With views that are older than those in use it would let a second ring begin."""

    async def scenario() -> None:
        with EtcdCluster(tmp_path / "etcd") as etcd:
            registry = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            await registry.commit([], [Put("k", b"1")])
            await _put_back(etcd, tmp_path, lambda: _commit_sometime(registry, "k", b"2"))
            with pytest.raises(RegistryWentBackError, match="went back"):
                await registry.get("k")
            # Others may write to it, until its revision is as high as before.
            other = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            for _ in range(5):
                await other.commit([], [Put("k", b"3")])
            await other.close()
            with pytest.raises(RegistryWentBackError):
                await registry.list("")
            with pytest.raises(RegistryWentBackError):
                await registry.commit([], [Put("k", b"4")])
            await registry.close()

    run(scenario())


@pytest.mark.logs("the registry went back")
@pytest.mark.parametrize("writes", [1, 9], ids=["as many writes", "more writes"])
def test_an_etcd_that_was_put_back_and_written_to_is_refused(tmp_path: Path, writes: int) -> None:
    """Leases lapse, and nodes write themselves down again: no answer shows a lower revision."""

    async def scenario() -> None:
        with EtcdCluster(tmp_path / "etcd") as etcd:
            registry = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            await registry.commit([], [Put("k", b"1"), Put("other", b"1")])
            await _put_back(etcd, tmp_path, lambda: _commit_sometime(registry, "k", b"2"))
            other = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            for _ in range(writes):
                await other.commit([], [Put("other", b"2")])
            await other.close()
            with pytest.raises(RegistryWentBackError, match="went back"):
                await registry.get("k")
            with pytest.raises(RegistryWentBackError):
                await registry.commit([], [Put("k", b"3")])
            await registry.close()

    run(scenario())


@pytest.mark.logs("the registry went back")
def test_an_etcd_that_was_put_back_is_noticed_behind_a_compaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        with EtcdCluster(tmp_path / "etcd") as etcd:
            registry = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            await registry.commit([], [Put("k", b"1")])
            await _put_back(etcd, tmp_path, lambda: _commit_sometime(registry, "k", b"2"))
            other = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            for _ in range(5):
                revision = await other.commit([], [Put("other", b"2")])
            await other.close()
            assert revision is not None
            await _compact(etcd.endpoints[0], revision)
            with pytest.raises(RegistryWentBackError, match="went back"):
                await registry.get("k")
            await registry.close()

    run(scenario())


def test_an_etcd_that_was_restarted_or_compacted_is_trusted(tmp_path: Path) -> None:
    async def scenario() -> None:
        with EtcdCluster(tmp_path / "etcd") as etcd:
            registry = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            other = EtcdRegistry(etcd.endpoints, prefix="test/", deadline_s=2 * DEADLINE_S)
            await registry.commit([], [Put("k", b"1")])
            for key in ("other", "k"):
                revision = await other.commit([], [Put(key, b"2")])
                assert revision is not None
                await _compact(etcd.endpoints[0], revision)
                await asyncio.to_thread(etcd.kill)
                await asyncio.to_thread(etcd.start)
                assert await registry.get("k") is not None
                await _commit_sometime(other, "last", b"3")
            await registry.close()
            await other.close()

    run(scenario())


def test_workers_of_a_run_find_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    for worker in ("gw0", "gw1", "gw5"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        found += free_ports(400)
    assert len({*found}) == 1200
