"""Letters between the queue's core and the publisher of their node, which is played here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run
from node.tests.queue.test_deadletters import LetterScene
from waiting import until

from ringmq.v1 import common_pb2 as common
from ringmq_node.doors.grpc.fields import field_to_wire
from ringmq_node.model.deaths import ClosesCycleError
from ringmq_node.model.fields import Headers, fields_of
from ringmq_node.model.foreign import NO_CODECS
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue import deadletters
from ringmq_node.queue.block import Block
from ringmq_node.queue.effects import Effect, SendLetters
from ringmq_node.queue.leaving import LeaveReason, Leaving
from ringmq_node.queue.ops import Publish
from ringmq_node.replica import outbox as outbox_module
from ringmq_node.replica.letter_desk import LetterDesk, LetterMemory
from ringmq_node.replica.master_replica import MasterReplica
from ringmq_node.replica.outbox import Outbox


class PlayedPublisher:
    """Answers each publish as `answer` does, if set; else when `gate` is open."""

    codecs = NO_CODECS

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, list[bytes], frozenset[str]]] = []
        self.properties: list[common.Properties] = []
        self.priorities: list[int] = []
        # What a queue keeps of a call's messages, and what a headers exchange goes by.
        self.wishes: list[tuple[list[bytes], bool, Headers | None]] = []
        self.producers: set[bytes] = set()
        self.closed: list[bytes] = []
        self.answer: Callable[[str, int], bool] | None = None
        self.gates: dict[str, asyncio.Event] = {}
        self.waiting: list[asyncio.Task[bool]] = []

    async def publish(
        self,
        vhost: str,
        exchange: str,
        routing_keys: Sequence[str],
        block: Block,
        producer_id: bytes,
        first_sequence: int,
        *,
        transient: bool = False,
        priority: int = 0,
        headers: Headers | None = None,
        except_queues: frozenset[str] = frozenset(),
    ) -> bool:
        routing_key = ",".join(routing_keys)
        self.priorities.append(priority)
        self.wishes.append((block.bodies(), transient, headers))
        self.calls.append((exchange, routing_key, first_sequence, block.bodies(), except_queues))
        self.properties += map(common.Properties.FromString, block.properties())
        self.producers.add(producer_id)
        if self.answer is not None:
            return self.answer(routing_key, len(self.calls))
        if routing_key in self.gates and not self.gates[routing_key].is_set():
            await self.at_gate(routing_key)
        return True

    async def at_gate(self, routing_key: str) -> None:
        opened = asyncio.create_task(self.gates[routing_key].wait())
        self.waiting.append(opened)
        try:
            await opened
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise BrokerError(Reason.NOT_MASTER, "what is unknown") from None

    def close(self, producer_id: bytes) -> None:
        """As a node's: who waits for answers hears that there will be none."""
        self.closed.append(producer_id)
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.cancel()


class OutboxScene(LetterScene):
    """A queue with a core, whose letters go through an outbox."""

    def __init__(
        self, *, losses: tuple[object, ...] = (), memory: LetterMemory | None = None
    ) -> None:
        super().__init__()
        memory = memory or LetterMemory()
        self.master.departures.letter_window_bytes = memory.window_bytes
        self.publisher = PlayedPublisher()
        self.rules = QueueRules(dead_letter_exchange="dlx")
        self.tasks: list[asyncio.Task[None]] = []
        desk = LetterDesk(self.publisher, 1000, now_ms=lambda: 77, memory=memory)
        replica = SimpleNamespace(
            letter_desk=desk,
            spawn=self.spawn,
            record=SimpleNamespace(name="shop\x1fwork", id="id-1"),
            view=SimpleNamespace(losses=losses),
        )
        self.outbox = Outbox(
            cast(MasterReplica, replica), self.master.departures, self.do, lambda: self.rules
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendLetters):
                self.outbox.send(effect.letters)
            else:
                super().do([effect])

    def publish_with(self, *keys: str, body: bytes = b"x") -> None:
        self.publish_encoded(
            *[common.Properties(exchange="x", routing_key=key).SerializeToString() for key in keys],
            body=body,
        )

    def publish_encoded(
        self, *properties: bytes, body: bytes = b"x", transient: bool = False
    ) -> None:
        position = self.queue.state.next_position
        bodies = [body + b"%d" % (position + at) for at in range(len(properties))]
        block = Block.of(bodies, properties)
        op = Publish(position, block, transient)
        self.queue.properties.update(enumerate(properties, position))
        self.do(self.master.published(self.send(op), op, 1))
        self.all_safe()

    async def emptied(self) -> None:
        """All letters have left."""
        await until(lambda: not self.master.departures.letters)
        self.all_safe()
        assert self.queue.state.doomed is not None
        assert not self.queue.state.doomed.runs
        self.master.check()
        for task in self.tasks:
            await task


def play(work: Callable[[OutboxScene], Awaitable[None]], **options: Any) -> OutboxScene:
    async def main() -> OutboxScene:
        scene = OutboxScene(**options)
        await work(scene)
        return scene

    return run(main())


def reject_all(scene: OutboxScene) -> None:
    scene.consume(7)
    [consumer] = scene.master.consumers
    scene.reject(7, *consumer.outstanding.ranges())
    scene.all_safe()


def test_letters_have_the_exchange_the_key_and_one_more_death() -> None:
    async def work(scene: OutboxScene) -> None:
        scene.publish_with("a", "a", "b")
        reject_all(scene)
        await scene.emptied()
        assert scene.publisher.calls == [
            ("dlx", "a", 1, [b"x0", b"x1"], frozenset()),
            ("dlx", "b", 3, [b"x2"], frozenset()),
        ]
        deaths = [each.deaths[0] for each in scene.publisher.properties]
        assert deaths == [
            common.Death(
                reason="rejected",
                queue="work",
                exchange="x",
                routing_keys=[key],
                count=1,
                time_ms=77,
            )
            for key in "aab"
        ]
        assert scene.master.departures.letters_arrived_total == 3

    play(work)


def test_the_rules_of_the_moment_give_exchange_and_key() -> None:
    async def work(scene: OutboxScene) -> None:
        scene.rules = QueueRules(dead_letter_exchange="", dead_letter_routing_key="dead")
        scene.publish_with("a", "b", "a")
        reject_all(scene)
        await scene.emptied()
        # All have one key then, and leave in order.
        assert scene.publisher.calls == [("", "dead", 1, [b"x0", b"x1", b"x2"], frozenset())]

    play(work)


def test_letters_have_their_own_keys_again_when_the_rules_give_none() -> None:
    """Some of them are under way as one batch, and wait for its target."""

    async def work(scene: OutboxScene) -> None:
        scene.rules = QueueRules(dead_letter_exchange="dlx", dead_letter_routing_key="stuck")
        scene.outbox.rules_changed()
        scene.publisher.gates["stuck"] = asyncio.Event()
        scene.publish_with("a", "b", "b", "a")
        reject_all(scene)
        await until(lambda: len(scene.publisher.calls) == 1)
        scene.rules = QueueRules(dead_letter_exchange="dlx")
        scene.outbox.rules_changed()
        scene.do(scene.master.follow(scene.rules))
        await scene.emptied()
        assert scene.publisher.calls[1:] == [
            ("dlx", "a", 1, [b"x0"], frozenset()),
            ("dlx", "b", 2, [b"x1", b"x2"], frozenset()),
            ("dlx", "a", 4, [b"x3"], frozenset()),
        ]

    play(work)


def test_a_letter_keeps_all_keys_that_its_consumers_were_told() -> None:
    """amqp.md, section 5: "kept (with CC, without BCC)". The history has them, too."""

    async def work(scene: OutboxScene) -> None:
        properties = common.Properties(exchange="x", routing_key="a", cc=["b", "c"])
        scene.publish_encoded(properties.SerializeToString())
        scene.publish_encoded(b"")
        reject_all(scene)
        await scene.emptied()
        keys = [(number, keys) for _, keys, number, *_ in scene.publisher.calls]
        # To the queue itself: as if it had come through the default exchange.
        assert sorted(keys) == [(1, "a,b,c"), (2, "work")]
        deaths = [each.deaths[0] for each in scene.publisher.properties]
        assert sorted([*each.routing_keys] for each in deaths) == [["a", "b", "c"], ["work"]]
        # They are said anew by who publishes the letter.
        assert not any(each.cc for each in scene.publisher.properties)

    play(work)


def test_a_letter_is_as_persistent_as_its_message_and_has_its_headers() -> None:
    """Of one key, so they leave in one lane; what a batch has in common is said once."""
    new, old = fields_of({"kind": "new"}), fields_of({"kind": "old"})

    async def work(scene: OutboxScene) -> None:
        for headers, transient in ((new, False), (new, True), (old, False), (old, False)):
            wire = {name: field_to_wire(value) for name, value in headers.items()}
            properties = common.Properties(exchange="x", routing_key="a", headers=wire)
            scene.publish_encoded(properties.SerializeToString(), transient=transient)
        reject_all(scene)
        await scene.emptied()
        assert scene.publisher.wishes == [
            ([b"x0"], False, new),
            ([b"x1"], True, new),
            ([b"x2", b"x3"], False, old),
        ]
        # They stay with the message, too.
        kinds = [each.headers["kind"].text for each in scene.publisher.properties]
        assert kinds == ["new", "new", "old", "old"]

    play(work)


def test_a_stuck_target_holds_its_own_lane() -> None:
    async def work(scene: OutboxScene) -> None:
        scene.publisher.gates["stuck"] = asyncio.Event()
        scene.publish_with("stuck", "fine", "stuck", "fine")
        reject_all(scene)
        await until(lambda: scene.master.departures.letters_arrived_total == 2)
        assert [call[1] for call in scene.publisher.calls] == ["stuck", "fine", "fine"]
        # Consumers go on, and the depth says what waits.
        scene.publish_with("fine")
        assert scene.positions(7)[-1] == 4
        assert scene.master.departures.letters == 2
        scene.publisher.gates["stuck"].set()
        await scene.emptied()

    play(work)


@pytest.mark.parametrize("rule", ["exchange", "key", "none"])
def test_letters_that_wait_for_a_target_follow_the_rules_to_another_one(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The target is down. An operator leads the letters elsewhere, or drops them: those under way
    would hold all behind them."""
    monkeypatch.setattr(deadletters, "UNDER_WAY_MESSAGES_MAX", 2)
    rules = {
        "exchange": QueueRules(dead_letter_exchange="other"),
        "key": QueueRules(dead_letter_exchange="dlx", dead_letter_routing_key="fine"),
        "none": QueueRules(),
    }[rule]

    async def work(scene: OutboxScene) -> None:
        scene.publisher.gates["stuck"] = asyncio.Event()
        scene.publish_with(*["stuck"] * 4)
        reject_all(scene)
        await until(lambda: len(scene.publisher.calls) == 1)
        # Another rule changes nothing of them.
        scene.rules = QueueRules(dead_letter_exchange="dlx", max_length=7)
        scene.outbox.rules_changed()
        assert scene.publisher.closed == []
        scene.rules = rules
        scene.outbox.rules_changed()
        if rule == "exchange":
            scene.publisher.gates.clear()
        scene.do(scene.master.follow(rules))
        await scene.emptied()
        departures = scene.master.departures
        assert departures.letters_arrived_total == (0 if rule == "none" else 4)
        assert departures.letters_dropped_total == (4 if rule == "none" else 0)
        targets = [call[:2] for call in scene.publisher.calls[1:]]
        expected = {"exchange": ("other", "stuck"), "key": ("dlx", "fine")}
        assert set(targets) == ({expected[rule]} if rule != "none" else set())

    play(work)


def test_queues_share_the_room_of_letters_that_wait() -> None:
    """However many wait for one target: what they hold in memory is bounded, but for one letter
    each, and all of it is given back."""
    size, count, limit_bytes = 200, 30, 4_000
    memory = LetterMemory(limit_bytes)

    async def work(first: OutboxScene) -> None:
        scenes = [first, *(OutboxScene(memory=memory) for _ in range(5))]
        target = asyncio.Event()
        for scene in scenes:
            scene.publisher.gates["k"] = target
            scene.publish_with(*["k"] * count, body=bytes(size))
            reject_all(scene)
        most_bytes = limit_bytes + len(scenes) * 2 * size
        assert limit_bytes / 2 < memory.held_bytes <= most_bytes
        # Each has a letter on its way.
        await until(lambda: all(scene.publisher.calls for scene in scenes))
        scenes[-1].outbox.end()
        held_bytes = memory.held_bytes
        target.set()
        for scene in scenes[:-1]:
            await scene.emptied()
            assert memory.held_bytes <= held_bytes
            sent = [body for call in scene.publisher.calls for body in call[3]]
            assert [body[size:] for body in sent] == [b"%d" % at for at in range(count)]
        assert memory.held_bytes == 0

    play(work, memory=memory)


@pytest.mark.parametrize(
    "reason", [Reason.NO_MASTER, Reason.LIMIT_EXCEEDED, Reason.PRODUCER_FENCED]
)
def test_a_target_that_refuses_delays_its_letters(
    reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_FIRST_S", 0.001)

    async def work(scene: OutboxScene) -> None:
        def answer(key: str, calls: int) -> bool:
            if calls < 4:
                raise BrokerError(reason, "not now")
            return True

        scene.publisher.answer = answer
        scene.publish_with("a", "a")
        reject_all(scene)
        await scene.emptied()
        assert [call[2] for call in scene.publisher.calls] == [1] * 4
        assert scene.master.departures.letters_arrived_total == 2

    play(work)


@pytest.mark.parametrize("raises", [True, False])
def test_letters_without_a_target_are_dropped_after_a_while(
    raises: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(outbox_module, "UNKNOWN_S", 0.005)

    async def work(scene: OutboxScene) -> None:
        def answer(key: str, calls: int) -> bool:
            if raises:
                raise BrokerError(Reason.EXCHANGE_NOT_FOUND, "no such exchange")
            return False

        scene.publisher.answer = answer
        scene.publish_with("a", "a")
        reject_all(scene)
        await scene.emptied()
        first_calls = len(scene.publisher.calls)
        assert first_calls > 1
        assert scene.master.departures.letters_dropped_total == 2
        # The next ones needn't wait, and aren't logged one by one.
        scene.publish_with("a")
        scene.reject(7, (2, 2))
        scene.all_safe()
        await scene.emptied()
        assert len(scene.publisher.calls) == first_calls + 1
        assert scene.master.departures.letters_dropped_total == 3
        assert sum("dead letters dropped" in each.message for each in caplog.records) == 1

    play(work)


def test_a_letter_that_its_target_may_have_forgotten_is_sent_under_another_number() -> None:
    async def work(scene: OutboxScene) -> None:
        def answer(key: str, calls: int) -> bool:
            if calls == 1:
                raise BrokerError(Reason.SEQUENCE_FORGOTTEN, "can't tell")
            return True

        scene.publisher.answer = answer
        scene.publish_with("a", "a")
        reject_all(scene)
        for _ in range(3):
            await asyncio.sleep(0)
            scene.all_safe()
        await scene.emptied()
        assert [call[2] for call in scene.publisher.calls] == [1, 3]

    play(work)


def test_queues_of_a_cycle_are_left_out() -> None:
    async def work(scene: OutboxScene) -> None:
        scene.publish_with("a")
        runs = scene.master._ready.take(
            1 << 60, messages_max=1, bytes_max=1000, first_bytes_max=None
        )
        ranges = tuple(run.positions for run in runs)
        scene.master.leave(Leaving(LeaveReason.EXPIRED, ranges))
        scene.do(scene.master.departures.next_ops())
        scene.all_safe()
        await scene.emptied()
        assert scene.publisher.calls[0][4] == {"shop\x1fwork"}

    play(work)


def test_a_letter_whose_only_way_is_a_cycle_waits_for_no_binding(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue is known, so nothing that the node hasn't heard of yet is missing. It isn't
    remembered as a key without a target, either: others with this key may go there."""
    monkeypatch.setattr(outbox_module, "RETRY_FIRST_S", 3600.0)

    async def work(scene: OutboxScene) -> None:
        def answer(key: str, calls: int) -> bool:
            if calls == 1:
                raise ClosesCycleError(["work"])
            return True

        scene.publisher.answer = answer
        scene.publish_with("a", "a")
        reject_all(scene)
        await scene.emptied()
        assert len(scene.publisher.calls) == 1
        assert scene.master.departures.letters_dropped_total == 2
        [told] = [each.message for each in caplog.records if "dropped" in each.message]
        assert "they would go round for ever through 'work'" in told
        scene.publish_with("a")
        scene.reject(7, (2, 2))
        scene.all_safe()
        await scene.emptied()
        assert scene.master.departures.letters_arrived_total == 1

    play(work)


def test_letters_are_counted_and_logged_by_the_reason_for_which_they_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One reason doesn't keep another one out of the log, or count for it."""
    monkeypatch.setattr(outbox_module, "UNKNOWN_S", 0.0)

    async def work(scene: OutboxScene) -> None:
        def answer(key: str, calls: int) -> bool:
            if key == "cycle":
                raise ClosesCycleError(["work"])
            return False

        scene.publisher.answer = answer
        scene.publish_with("nowhere", "nowhere", "nowhere", "cycle", "cycle")
        reject_all(scene)
        await scene.emptied()
        assert scene.master.departures.letters_dropped_total == 5
        told = [each.message for each in caplog.records if "dead letters dropped" in each.message]
        counts = [(each.split(": ")[1][0], each.split(", as ")[1][:8]) for each in told]
        assert sorted(counts) == [("2", "they wou"), ("3", "no queue")]

    play(work)


def test_what_is_on_its_way_when_the_mastership_ends_is_the_next_ones() -> None:
    async def work(scene: OutboxScene) -> None:
        scene.publisher.gates["a"] = asyncio.Event()
        scene.publish_with("a", "a")
        reject_all(scene)
        await until(lambda: len(scene.publisher.calls) == 1)
        scene.outbox.end()
        await asyncio.wait(scene.tasks)
        assert scene.publisher.closed == [scene.outbox.producer_id]
        assert scene.queue.state.live.contains_all(0, 1)

    play(work)


def test_the_producer_is_another_one_after_an_accepted_loss() -> None:
    """Letters' numbers may be given again then."""

    async def work(scene: OutboxScene) -> None:
        pass

    one, same = play(work), play(work)
    other = play(work, losses=(SimpleNamespace(epoch=5),))
    assert one.outbox.producer_id == same.outbox.producer_id != other.outbox.producer_id
    assert len(one.outbox.producer_id) <= 64
