"""A replica whose bodies are damaged on a real disk; the other members are played."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from expected_logs import DAMAGE
from node.tests.replica.scene import LAST, ME, NEXT, PlayedHost, Scene, refused
from node.tests.storage.workload import bodies, run_store

from ringmq.v1 import common_pb2 as common
from ringmq.v1 import ring_pb2 as wire
from ringmq_base.ranges import Range
from ringmq_gm import MemberId, Role
from ringmq_node.doors.grpc.ring import FetchService
from ringmq_node.doors.grpc.service import Context
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.replica import repair as repair_module
from ringmq_node.replica import taking
from ringmq_node.replica.description import queue_info
from ringmq_node.replica.fetching import Fetched, Lacking, SourceError
from ringmq_node.replica.hosting import Hosting
from ringmq_node.storage import Store, StoreLimits
from ringmq_node.storage.errors import CorruptionReport, ReadError

pytestmark = pytest.mark.may_log(DAMAGE)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_module, "RETRY_S", 0.005)


def body(position: int) -> bytes:
    return b"message %04d." % position * 8


class Others(PlayedHost):
    """The other members have the bodies in `has`; members in `silent` don't answer."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.has: dict[MemberId, set[int]] = {NEXT: set(), LAST: set()}
        self.silent: set[MemberId] = set()
        self.hung: set[MemberId] = set()
        self.asked: list[tuple[MemberId, list[Range]]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def fetch_messages(
        self, queue_id: str, source: MemberId, ranges: Sequence[Range], *, bytes_max: int = 1 << 20
    ) -> AsyncIterator[Fetched]:
        self.asked.append((source, [*ranges]))
        await self.answers.wait()
        if source in self.hung:
            await asyncio.Event().wait()
        if source in self.silent:
            raise SourceError("planted")
        for position in [at for first, last in ranges for at in range(first, last + 1)]:
            if position in self.has[source]:
                yield position, Block.of([body(position)]), False
            else:
                yield Lacking(((position, position),))


class DamagedScene(Scene):
    host: Others

    def make_host(self) -> Others:
        return Others(self.store)

    def publish_each(self, count: int) -> None:
        """Publishes in batches of one, so that each message is a record of its own."""
        first = self.replica.store.state.next_position
        number = self.publish(first + 1, body(first))
        for at in range(first + 1, first + count):
            self.publish(at + 1, body(at), to=number)

    async def published(self, count: int) -> None:
        self.publish_each(count)
        total = self.replica.store.state.next_position
        await self.until(lambda: sum(b - a + 1 for a, b in self.publisher.sequences) == total)
        await self.quiet()

    def deliver_each(self, count: int) -> None:
        """Delivers messages to the replica as a mirror."""
        for at in range(count):
            op = Publish(at, Block.of([body(at)]), False, b"p", at + 1)
            self.replica.deliver(at + 1, 1, ops.encode(op))

    def damage(self, *positions: int) -> None:
        """Flips one bit of each of these bodies, wherever it is on the disk."""
        for position in positions:
            found = 0
            for path in sorted(self.store.directory.rglob("*")):
                data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
                at = data.find(body(position))
                if at >= 0:
                    data[at + 3] ^= 1
                    path.write_bytes(data)
                    found += 1
            assert found == 1, (position, found)

    def got(self) -> list[int]:
        assert all(data == body(at) for at, data, _ in self.consumer.got)
        return [at for at, _, _ in self.consumer.got]

    @property
    def damaged(self) -> int:
        return queue_info(self.replica).messages_damaged


def scenario(
    tmp_path: Path, play: Callable[[DamagedScene], Awaitable[None]], members: int = 3
) -> None:
    """Plays on a store that keeps no bodies in memory."""
    limits = StoreLimits(queue_memory_bytes_max=0, journal_entries_max=20, read_ahead_bytes=0)
    store = Store.open(tmp_path / "data", cluster_id="c", node="a", limits=limits)

    async def work() -> None:
        scene = DamagedScene(store, members)
        await play(scene)
        # The queue is told of a loss in the loop's next turn, and counts anew. The played members
        # answer within one turn: the body may have come back, and been delivered, before.
        await asyncio.sleep(0)
        if scene.replica.mastership is not None:
            scene.replica.mastership.queue.check()
        scene.replica.close(Reason.DRAINING)
        for task in scene.host.tasks:
            task.cancel()
        for result in await asyncio.gather(*scene.host.tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result

    run_store(store, work, timeout_s=20)


# --- the master ---


def test_master_waits_for_the_damaged_message_and_nothing_else_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(5)
        scene.damage(2)
        scene.host.has[NEXT] = {2}
        scene.host.answers.clear()
        number = scene.consume()
        await scene.until(lambda: scene.host.asked != [])
        assert scene.got() == [0, 1]
        await scene.published(1)
        scene.ack(number, (0, 1))
        await scene.until(lambda: scene.consumer.safe == [(0, 1)])
        assert scene.got() == [0, 1]
        scene.host.answers.set()
        await scene.until(lambda: len(scene.consumer.got) == 6)
        assert scene.got() == [0, 1, 2, 3, 4, 5]
        assert scene.host.asked == [(NEXT, [(2, 2)])]
        assert scene.host.failures == []
        assert not scene.replica.store.missing
        assert scene.damaged == 0

    scenario(tmp_path, play)
    reports = [text for text in caplog.messages if "journal.jif" in text]
    assert len(reports) == 1, reports
    assert "bytes at" in reports[0]


def test_what_nobody_has_is_put_aside_until_it_is_discarded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(5)
        scene.damage(0, 3)
        scene.consume()
        await scene.until(lambda: len(scene.consumer.got) == 3)
        assert scene.got() == [1, 2, 4]
        info = queue_info(scene.replica)
        assert (info.messages_damaged, info.messages_ready, info.messages_unacknowledged) == (
            2,
            0,
            3,
        )
        assert len(scene.replica.store.state.live) == 5
        assert await scene.replica.serving().discard_damaged() == 2
        assert scene.ring.sent()[-1] == Remove(((0, 0), (3, 3)))
        assert await scene.replica.serving().discard_damaged() == 0
        assert scene.damaged == 0
        assert not scene.replica.store.missing
        assert scene.host.failures == []

    scenario(tmp_path, play)
    told = [record.getMessage() for record in caplog.records if "no synchronised" in record.msg]
    assert any("positions 0" in text for text in told), told


def test_master_looks_once_for_all_that_is_lost_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look recounts the whole queue: once for each of thousands of messages takes minutes."""

    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(50)
        looks: list[int] = []
        look = scene.replica.bodies_lost

        def counted() -> None:
            looks.append(len(scene.replica.store.missing))
            look()

        monkeypatch.setattr(scene.replica, "bodies_lost", counted)
        for entry in [*scene.replica.store.bodies.index]:
            scene.replica.store.bodies.lose(entry, CorruptionReport("file", 0, 1, "bad crc"))
        await asyncio.sleep(0)
        assert looks == [50]

    scenario(tmp_path, play)


def test_members_are_asked_one_after_the_other(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(3)
        scene.damage(0, 1)
        scene.host.has = {NEXT: {1}, LAST: {0}}
        scene.consume()
        await scene.until(lambda: len(scene.consumer.got) == 3)
        assert scene.got() == [0, 1, 2]
        assert scene.host.asked == [
            (NEXT, [(0, 0)]),
            (LAST, [(0, 0)]),
            # Until now the queue did not know of the damage behind it.
            (LAST, [(1, 1)]),
            (NEXT, [(1, 1)]),
        ]
        assert scene.host.failures == []

    scenario(tmp_path, play)


def test_member_that_does_not_answer_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again until then: it may just be opening its ring."""
    monkeypatch.setattr(repair_module, "MEMBER_DEADLINE_S", 0.05)

    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(4)
        scene.damage(0, 3)
        scene.host.silent = {NEXT}
        scene.host.has[LAST] = {0}
        scene.consume()
        await scene.until(lambda: scene.damaged == 1)
        assert scene.got() == [0, 1, 2]
        assert len([source for source, _ in scene.host.asked if source == NEXT]) > 2

    scenario(tmp_path, play)
    assert any("no answer from b#1" in text for text in caplog.messages)


def test_member_that_has_left_the_ring_is_not_waited_for(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(2)
        scene.damage(0)
        scene.host.hung = {NEXT}
        scene.host.has[LAST] = {0}
        scene.consume()
        await scene.until(lambda: scene.host.asked != [])
        assert scene.got() == []
        scene.ring.members = tuple(each for each in scene.ring.members if each.id != NEXT)
        scene.ring.enter(Role.MASTER, 2)
        await scene.until(lambda: len(scene.consumer.got) == 2)
        assert scene.got() == [0, 1]

    scenario(tmp_path, play)


def test_single_replica_goes_on_at_once(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(3)
        scene.damage(1)
        scene.consume()
        await scene.until(lambda: len(scene.consumer.got) == 2)
        assert scene.got() == [0, 2]
        assert scene.damaged == 1
        assert scene.host.asked == []

    scenario(tmp_path, play, members=1)


@pytest.mark.parametrize("how", ["view", "time"])
def test_given_up_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """When the view changes, or after a while. It goes back to its place."""
    if how == "time":
        monkeypatch.setattr(repair_module, "AGAIN_S", 0.05)

    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(3)
        scene.damage(0)
        scene.consume(messages=1)
        await scene.until(lambda: scene.damaged == 1)
        rounds = len(scene.host.asked)
        assert scene.got() == [1]
        await scene.quiet()
        if how == "view":
            assert len(scene.host.asked) == rounds
        scene.host.has[LAST] = {0}
        if how == "view":
            scene.ring.enter(Role.MASTER, 2)
        await scene.until(lambda: scene.damaged == 0)
        assert scene.replica.mastership is not None
        assert [*scene.replica.mastership.queue.ready] == [(0, 0), (2, 2)]

    scenario(tmp_path, play)


def test_new_master_delivers_nothing_before_what_it_misses_is_repaired(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        scene.ring.enter(Role.MIRROR, 1)
        scene.deliver_each(3)
        await scene.quiet()
        scene.damage(1)
        scene.host.answers.clear()
        assert len(bodies_until_damage(scene)) == 1
        scene.ring.enter(Role.MASTER, 2)
        await scene.replica.wait_serving()
        scene.consume()
        await scene.quiet()
        assert scene.got() == [0]
        scene.host.has[LAST] = {1}
        scene.host.answers.set()
        await scene.until(lambda: len(scene.consumer.got) == 3)
        assert scene.got() == [0, 1, 2]

    scenario(tmp_path, play)


def test_what_a_mirror_gave_up_is_damaged_when_it_takes_over(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        scene.ring.enter(Role.MIRROR, 1)
        scene.deliver_each(3)
        await scene.quiet()
        scene.damage(1)
        assert len(bodies_until_damage(scene)) == 1
        await scene.until(lambda: bool(scene.replica._repair.given_up))
        # The others are asked again, and answer before the ring takes the first op.
        asked = len(scene.host.asked)
        scene.ring.writable.clear()
        scene.ring.enter(Role.MASTER, 2)
        await scene.until(lambda: bool(scene.replica._repair.given_up))
        assert len(scene.host.asked) > asked
        scene.ring.writable.set()
        await scene.replica.wait_serving()
        scene.consume()
        await scene.until(lambda: len(scene.consumer.got) == 2)
        assert scene.got() == [0, 2]
        assert scene.damaged == 1

    scenario(tmp_path, play)


def bodies_until_damage(scene: DamagedScene) -> dict[int, bytes]:
    """A reader comes, and notices the first damage."""
    with pytest.raises(Exception, match="checksum"):
        bodies(scene.replica.store, bytes_max=1)
    return {0: body(0)}


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE], ids=["EIO", "EMFILE"])
def test_a_file_that_cannot_be_read_takes_its_replica_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Without file descriptors the whole node: its next life comes by itself."""

    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(1)

        def fail(*_: object, **__: object) -> None:
            raise ReadError("can't be read") from OSError(error, "as it is")

        monkeypatch.setattr(scene.replica.store, "fetch", fail)
        refused(lambda: scene.consume(), Reason.STORE_FAILED)
        of_node = [str(each) for each in scene.host.failures]
        assert (of_node, scene.host.failed) == (
            (["can't be read"], []) if error == errno.EMFILE else ([], ["can't be read"])
        )

    scenario(tmp_path, play)


# --- without a stream ---


def test_get_waits_for_the_repair(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(3)
        scene.damage(0)
        scene.host.has[NEXT] = {0}
        scene.host.answers.clear()
        peeking = asyncio.create_task(scene.replica.serving().peek(1, 1000))
        taking = asyncio.create_task(scene.replica.serving().take(1, 1000))
        await scene.until(lambda: scene.host.asked != [])
        assert not peeking.done()
        assert not taking.done()
        scene.host.answers.set()
        (seen,), (taken,) = await asyncio.gather(peeking, taking)
        assert seen.block.bodies() == taken.block.bodies() == [body(0)]

    scenario(tmp_path, play)


def test_get_says_so_when_the_repair_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "REPAIR_WAIT_S", 0.02)

    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(3)
        scene.damage(1)
        scene.host.answers.clear()
        (first,) = await scene.replica.serving().peek(3, 1000)
        assert first.block.bodies() == [body(0)]
        await scene.replica.serving().take(1, 1000)
        serving = scene.replica.serving()
        for get in (serving.peek, serving.take):
            with pytest.raises(BrokerError, match="damaged") as caught:
                await get(3, 1000)
            assert caught.value.reason == Reason.REPAIRING
            assert caught.value.retryable
        # Ready messages can be purged, damaged or not.
        assert await scene.replica.serving().purge() == 2

    scenario(tmp_path, play)


# --- a mirror ---


def test_mirror_repairs_what_its_flush_finds(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        scene.ring.enter(Role.MIRROR, 1)
        scene.deliver_each(15)
        await scene.quiet()
        scene.damage(4, 7)
        scene.host.has[NEXT] = {4, 7}
        for at in range(15, 30):
            op = Publish(at, Block.of([body(at)]), False, b"p", at + 1)
            scene.replica.deliver(at + 1, 1, ops.encode(op))
        await scene.until(lambda: scene.host.asked != [])
        await scene.until(lambda: not scene.replica.store.missing)
        assert bodies(scene.replica.store) == {at: body(at) for at in range(30)}
        assert {source for source, _ in scene.host.asked} == {NEXT}
        assert scene.host.failures == []
        await scene.store.sync()
        scene.replica.store.check()

    scenario(tmp_path, play)


def test_who_is_put_out_asks_no_more(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        scene.ring.enter(Role.MIRROR, 1)
        scene.deliver_each(2)
        await scene.quiet()
        scene.damage(1)
        scene.host.answers.clear()
        bodies_until_damage(scene)
        await scene.until(lambda: scene.host.asked != [])
        scene.ring.enter(Role.OUTSIDE, 2)
        scene.host.has[NEXT] = {1}
        scene.host.answers.set()
        await scene.quiet()
        assert len(scene.replica.store.missing) == 1

    scenario(tmp_path, play)


# --- answers to other members ---


def test_mirror_gives_what_it_has_and_says_what_it_lacks(tmp_path: Path) -> None:
    async def play(scene: DamagedScene) -> None:
        scene.ring.enter(Role.MIRROR, 1)
        scene.deliver_each(6)
        scene.replica.deliver(7, 1, ops.encode(Remove(((3, 3),))))
        await scene.quiet()
        scene.damage(1, 4)
        hosting = SimpleNamespace(replicas={"id": scene.replica})
        service = FetchService(cast(Hosting, hosting))
        given: list[wire.FetchMessagesResponse] = []

        async def write(data: bytes) -> None:
            given.append(wire.FetchMessagesResponse.FromString(data))

        context: Any = cast(Context, SimpleNamespace(write=write))
        request = wire.FetchMessagesRequest(
            queue="id", positions=[common.Range(first=0, last=4), common.Range(first=5, last=9)]
        )
        await service._messages(request.SerializeToString(), context)
        assert len(given) == 1
        runs = given[0].runs
        assert [each.first_position for each in runs] == [0, 2, 5]
        assert Block(runs[1].block).bodies() == [body(2)]
        lacking = [(each.first, each.last) for each in given[0].missing]
        assert lacking == [(1, 1), (4, 4)]
        # It has noticed that it is damaged itself.
        await scene.until(lambda: scene.host.asked != [])
        assert ME not in {source for source, _ in scene.host.asked}

    scenario(tmp_path, play)
