"""A producer that has been silent for long is forgotten, by every replica at the same op."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.tests.replica.scene import Publisher, Scene, scenario

from ringmq_gm import Refusal, Role
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue import ops
from ringmq_node.queue.ops import NoteTime
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica import publishers as publishers_module
from ringmq_node.replica import remembering as remembering_module
from ringmq_node.replica.producer_budget import ProducerBudget, time_step_ms
from ringmq_node.storage import Store

DAY_S = 24 * 3600
DAY_MS = DAY_S * 1000
START_MS = 20_000 * DAY_MS


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 0.0)


def known(scene: Scene) -> list[bytes]:
    return [*scene.replica.store.state.producers]


async def look(scene: Scene, expiry_s: float = DAY_S) -> int:
    budget = ProducerBudget(lambda: [scene.replica], 100_000, expiry_s=expiry_s)
    return await budget.look()


async def master_of_three(scene: Scene) -> None:
    """p0, p1 and p2 have published, half a day between them."""
    scene.host.time_ms = START_MS
    await scene.become_master()
    for number in range(3):
        scene.publish(1, b"x", producer=b"p%d" % number)
        scene.host.time_ms += DAY_MS // 2


def mirror_of(scene: Scene) -> ReplicatedState:
    """A replica that has nothing but the ops."""
    mirror = ReplicatedState()
    mirror.begin_epoch(1)
    for number, epoch, payload in scene.ring.log:
        if epoch > mirror.epoch:
            mirror.begin_epoch(epoch)
        mirror.apply(number, ops.decode(payload))
    mirror.check()
    return mirror


def test_who_has_not_published_for_so_long_is_forgotten_on_every_replica(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        scene.host.time_ms = START_MS + DAY_MS - 1
        assert await look(scene) == 0
        scene.host.time_ms += 1
        assert await look(scene) == 1
        assert known(scene) == [b"p1", b"p2"]
        assert mirror_of(scene).digest() == scene.replica.store.state.digest()
        # The others when their time has come; a look finds nothing twice.
        scene.host.time_ms += DAY_MS
        assert [await look(scene) for _ in range(2)] == [2, 0]
        assert mirror_of(scene).digest() == scene.replica.store.state.digest()

    scenario(tmp_path, play)


def test_without_the_setting_nobody_is_forgotten(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        scene.host.time_ms += 1000 * DAY_MS
        assert await look(scene, 0.0) == 0

    scenario(tmp_path, play)


def test_a_publish_makes_a_producer_new_and_a_connected_one_stays(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        number, _ = await scene.replica.serving().open_publisher(Publisher(), b"p1")
        scene.publish(2, b"y", producer=b"p0")
        scene.host.time_ms += DAY_MS - 1
        assert await look(scene) == 1
        assert known(scene) == [b"p1", b"p0"]
        scene.replica.serving().close_publisher(number, b"p1")
        assert await look(scene) == 1
        assert known(scene) == [b"p0"]

    scenario(tmp_path, play)


def test_who_has_just_left_may_come_back_and_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream broke, and its first batch is unconfirmed: sent again, it would look new."""

    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        number, _ = await scene.replica.serving().open_publisher(Publisher(), b"p0")
        monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 60.0)
        scene.replica.serving().close_publisher(number, b"p0")
        scene.host.time_ms += 10 * DAY_MS
        budget = ProducerBudget(lambda: [scene.replica], 0, expiry_s=DAY_S)
        # The take-over was long ago.
        monkeypatch.setattr(scene.replica.remembering, "_forgets_from", 0.0)
        assert await budget.look() == 2
        assert known(scene) == [b"p0"]
        # The queue recognises the batch.
        scene.publish(1, b"x", producer=b"p0")
        await scene.until(lambda: (1, 1) in scene.publisher.sequences)
        assert scene.replica.store.state.next_position == 3

    scenario(tmp_path, play)


def test_those_who_left_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering_module, "FORGET_AFTER_S", 60.0)
    monkeypatch.setattr(publishers_module, "LEFT_MAX", 2)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        sessions = scene.replica.serving().publish_sessions
        for name in (b"a", b"b", b"c"):
            number, _ = await scene.replica.serving().open_publisher(Publisher(), name)
            scene.replica.serving().close_publisher(number, name)
        assert [sessions.may_go_on(name) for name in (b"a", b"b", b"c")] == [False, True, True]

    scenario(tmp_path, play)


def test_time_is_said_for_publishes_only_and_now_and_then(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.host.time_ms = START_MS
        await scene.become_master()
        for sequence in range(1, 11):
            scene.publish(sequence, b"x")
            scene.host.time_ms += 6_000
        # Without a producer id there is nobody to remember.
        scene.host.time_ms += DAY_MS
        scene.publish(1, b"x", producer=b"")
        times = [op.time_ms for op in scene.ring.sent() if isinstance(op, NoteTime)]
        assert times == [START_MS]
        scene.publish(11, b"x")
        times = [op.time_ms for op in scene.ring.sent() if isinstance(op, NoteTime)]
        assert times == [START_MS, START_MS + 60_000 + DAY_MS]

    scenario(tmp_path, play)


@pytest.mark.parametrize(("expiry_s", "step_ms"), [(60, 6_000), (DAY_S, 60_000), (0, 1_000)])
def test_the_step_fits_the_expiry(expiry_s: int, step_ms: int) -> None:
    assert time_step_ms(expiry_s) == step_ms


def test_a_new_master_goes_on_by_the_times_of_the_one_before(tmp_path: Path) -> None:
    """And not by the moment of the take-over."""

    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        scene.ring.enter(Role.MIRROR, 2)
        assert await look(scene) == 0
        await scene.become_master(3)
        assert await look(scene) == 2
        assert known(scene) == [b"p2"]
        scene.host.time_ms += DAY_MS // 2 - 1
        assert await look(scene) == 0

    scenario(tmp_path, play)


def test_a_master_whose_clock_is_behind_keeps_them_longer_and_not_for_ever(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.host.time_ms = START_MS + 1000 * DAY_MS
        await scene.become_master()
        scene.publish(1, b"x", producer=b"early")
        scene.ring.enter(Role.MIRROR, 2)
        scene.host.time_ms = START_MS
        await scene.become_master(3)
        assert await look(scene) == 0
        scene.publish(1, b"x", producer=b"late")
        scene.replica.store.state.check()
        scene.host.time_ms += DAY_MS
        assert await look(scene) == 2
        assert mirror_of(scene).digest() == scene.replica.store.state.digest()

    scenario(tmp_path, play)


def test_times_are_known_after_a_restart(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        scene.replica.store.seal()
        scene.publish(1, b"x", producer=b"p3")
        await scene.quiet()

    scenario(tmp_path, play)
    store = Store.open(tmp_path / "data", cluster_id="c", node="a")
    state = store.open_queue("q").state
    store.close()
    half = DAY_MS // 2
    assert state.producer_times == {
        b"p%d" % number: START_MS + number * half for number in range(4)
    }
    assert state.time_ms == START_MS + 3 * half


def test_who_was_forgotten_is_told_unless_it_begins_anew(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await master_of_three(scene)
        scene.publish(2, b"y", producer=b"p0")
        scene.host.time_ms += 10 * DAY_MS
        assert await look(scene) == 3
        session = Publisher()
        number, last = await scene.replica.serving().open_publisher(session, b"p0")
        assert last == 0
        with pytest.raises(BrokerError) as refused:
            scene.publish(3, b"z", producer=b"p0", to=number)
        assert refused.value.reason is Reason.UNKNOWN_PRODUCER
        scene.publish(1, b"z", producer=b"p0", to=number)
        assert scene.replica.store.state.producers[b"p0"] == 1

    scenario(tmp_path, play)


def test_a_ring_that_the_time_has_filled_refuses_the_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(scene: Scene) -> None:
        scene.host.time_ms = START_MS
        await scene.become_master()
        send = scene.ring.multicast

        def fill(payload: bytes, *, urgent: bool = False) -> int:
            number = send(payload, urgent=urgent)
            scene.ring.refuses = Refusal.FULL
            return number

        monkeypatch.setattr(scene.ring, "multicast", fill)
        with pytest.raises(BrokerError) as refused:
            scene.publish(1, b"x")
        assert refused.value.reason is Reason.DRAINING
        assert scene.replica.store.state.next_position == 0
        monkeypatch.undo()
        scene.ring.refuses = None
        scene.publish(1, b"x")
        await scene.confirmed((1, 1))

    scenario(tmp_path, play)
