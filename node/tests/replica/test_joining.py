"""A replica joins, on a real store, beside a source that goes on, fails, or lags behind."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from node.tests.storage.workload import bodies, run_store

from ringmq.v1 import ring_pb2 as wire
from ringmq_base.pieces import timed_by
from ringmq_base.ranges import Range, RangeSet
from ringmq_node.doors.grpc.wire import state_from_wire, state_to_wire
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.settings import SyncSettings
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica import joining as joining_module
from ringmq_node.replica.fetching import SourceError
from ringmq_node.replica.joining import Joining
from ringmq_node.replica.syncing import Syncing
from ringmq_node.replica.turns import CatchUpTurns
from ringmq_node.storage import QueueStore, Store, StoreClosedError
from ringmq_node.storage.format.packing import RANGES_PACKED_MAX

Delivered = tuple[int, int, bytes]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining_module, "RETRY_S", 0.005)
    monkeypatch.setattr(joining_module, "DELIVERY_DEADLINE_S", 0.2)


class Source:
    """A master with its log; it answers a joiner, with the faults that a test plants."""

    def __init__(self, queue: QueueStore) -> None:
        self.queue = queue
        self.log: list[Delivered] = []
        self.asked: list[list[Range]] = []
        self.states_given = 0
        # Called before each piece of bodies; may raise, wait, or change the queue.
        self.before_piece: Callable[[int], Awaitable[None]] | None = None
        self.before_state: Callable[[], Awaitable[None]] | None = None
        self.piece_messages = 3
        self.pieces_ended = 0

    def append(self, op: Op) -> None:
        payload = ops.encode(op)
        number = self.queue.state.last_number + 1
        self.queue.append(number, op, payload)
        self.log.append((number, self.queue.state.epoch, payload))

    def publish(self, *names: str, transient: bool = False) -> None:
        block = Block.of([name.encode() for name in names])
        self.append(Publish(self.queue.state.next_position, block, transient, b"p", 1))

    def publish_many(self, count: int) -> None:
        first = self.queue.state.next_position
        self.publish(*(f"m{at}" for at in range(first, first + count)))

    def remove(self, *ranges: Range) -> None:
        self.append(Remove(ranges))

    def requeue(self, *ranges: Range) -> None:
        self.append(Requeue(ranges))

    async def fetch_state(self, number_min: int) -> ReplicatedState:
        if self.before_state is not None:
            await self.before_state()
        assert self.queue.state.last_number >= number_min
        self.states_given += 1
        # As the door does: the state goes on, and it is packed in pieces.
        data = (await state_to_wire(self.queue.state.copy())).SerializeToString()
        return await state_from_wire(wire.FetchStateResponse.FromString(data))

    async def fetch_messages(
        self, ranges: Sequence[Range]
    ) -> AsyncIterator[tuple[int, Block, bool]]:
        self.asked.append([*ranges])
        pieces = 0
        try:
            for first, last in ranges:
                while runs := self.queue.read(
                    first, last, bytes_max=1000, messages_max=self.piece_messages
                ):
                    for run in runs:
                        if self.before_piece is not None:
                            await self.before_piece(pieces)
                        pieces += 1
                        yield run.first_position, run.block, run.transient
                    first = runs[-1].last_position + 1
        finally:
            self.pieces_ended += 1


class Joiner:
    """A replica as far as joining goes: ops come in through `deliver`."""

    def __init__(self, store: Store, queue: QueueStore, source: Source) -> None:
        self.store = store
        self.queue = queue
        self.source = source
        self.delivered = 0
        self.joining: Joining | None = None
        self.syncing = Syncing(SyncSettings())
        self.turns = CatchUpTurns()
        # Not set while an operator's decision for the log as it is may take effect.
        self.none_open = asyncio.Event()
        self.none_open.set()

    async def wait_none_open(self) -> None:
        await self.none_open.wait()

    def join(self) -> None:
        """The ring delivers the ops that come after this moment."""
        self.delivered = self.source.queue.state.last_number
        self.joining = Joining(
            self.queue,
            self.delivered,
            apply=self.apply,
            installed=lambda: None,
            sync=self.store.sync,
            syncing=self.syncing,
            turns=self.turns,
            wait_installable=self.wait_none_open,
        )

    def deliver(self, count: int | None = None) -> None:
        """The ring brings the next `count` ops, or all."""
        assert self.joining is not None
        waiting = [op for op in self.source.log if op[0] > self.delivered]
        for number, epoch, payload in waiting[:count]:
            self.delivered = number
            if not self.joining.holds_back(number, epoch, payload):
                self.apply(number, epoch, payload)
                self.joining.applied()

    def apply(self, number: int, epoch: int, payload: bytes) -> None:
        if epoch > self.queue.state.epoch:
            self.queue.begin_epoch(epoch)
        self.queue.append(number, ops.decode(payload), payload)

    async def run(self) -> None:
        assert self.joining is not None
        await self.joining.run(
            lambda number: self.source.fetch_state(number),
            lambda ranges: self.syncing.paced(self.source.fetch_messages(ranges)),
        )

    def check_same(self) -> None:
        """The oracle: same state, same bodies, all of it on disk."""
        self.queue.check()
        assert not self.queue.missing
        assert self.queue.state.digest() == self.source.queue.state.digest()
        assert self.queue.state.epochs == self.source.queue.state.epochs
        assert self.queue.state.transient == self.source.queue.state.transient
        assert bodies(self.queue) == bodies(self.source.queue)
        assert self.queue.durable_number == self.queue.state.last_number
        assert self.queue.fills_durable


def scenario(tmp_path: Path, play: Callable[[Source, Joiner], Awaitable[None]]) -> None:
    store = Store.open(tmp_path / "data", cluster_id="c", node="n")
    source = Source(store.open_queue("source"))
    source.queue.begin_epoch(1)
    joiner = Joiner(store, store.open_queue("joiner"), source)
    run_store(store, lambda: play(source, joiner), timeout_s=20)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # any condition of the store or the source
            await asyncio.sleep(0)


def test_a_queue_that_waits_for_its_turn_keeps_no_ops_and_fetches_a_later_state(
    tmp_path: Path,
) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(10)
        joiner.turns = CatchUpTurns(1)
        joiner.join()
        assert joiner.joining is not None
        async with joiner.turns.state(), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(joiner.run())
            await until(lambda: joiner.turns.waiting == 1)
            source.publish_many(5)
            joiner.deliver()
            assert source.states_given == 0
            assert joiner.joining.held_back_bytes == 0
            running.cancel()
        assert joiner.turns.waiting == 0
        source.publish_many(5)
        joiner.deliver()
        await joiner.run()
        joiner.check_same()

    scenario(tmp_path, play)


def test_a_turn_that_comes_to_nothing_keeps_no_ops_while_others_wait(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(10)
        joiner.turns = CatchUpTurns(1)
        joiner.join()
        assert joiner.joining is not None
        held_back: list[int] = []

        async def another() -> None:
            async with joiner.turns.state():
                pass

        async def fails_once() -> None:
            source.before_state = None
            others.append(asyncio.create_task(another()))
            await until(lambda: joiner.turns.waiting == 1)
            source.publish_many(5)
            joiner.deliver()
            assert joiner.joining is not None
            held_back.append(joiner.joining.held_back_bytes)
            raise SourceError("the master is gone")

        others: list[asyncio.Task[None]] = []
        source.before_state = fails_once
        running = asyncio.create_task(joiner.run())
        await until(lambda: len(held_back) == 1)
        assert held_back[0] > 0
        await until(lambda: joiner.joining is not None and joiner.joining.held_back_bytes == 0)
        source.publish_many(5)
        joiner.deliver()
        await asyncio.gather(running, *others)
        joiner.check_same()

    scenario(tmp_path, play)


def test_ops_before_and_after_the_state_are_applied_once(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(10)
        source.remove((2, 4))
        joiner.join()
        source.publish_many(3)
        source.requeue((0, 1))
        joiner.deliver()

        async def first_time() -> None:
            source.before_state = None
            source.publish("after the question", transient=True)
            source.remove((10, 10))
            joiner.deliver()

        source.before_state = first_time
        running = asyncio.create_task(joiner.run())
        await until(lambda: source.states_given == 1)
        source.publish("after the answer")
        source.remove((0, 0))
        joiner.deliver()
        await running
        await joiner.store.sync()
        joiner.check_same()

    scenario(tmp_path, play)


def test_the_state_of_a_queue_without_an_op_is_known(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        joiner.join()
        source.publish_many(3)
        joiner.deliver()
        # Applied at once: they are the first ops.
        assert joiner.queue.state.last_number == 1
        await joiner.run()
        source.publish_many(1)
        joiner.deliver()
        await joiner.store.sync()
        joiner.check_same()
        assert source.states_given == 0

    scenario(tmp_path, play)


def test_a_log_that_has_ops_which_the_ring_has_not_is_no_unused_queue(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        joiner.queue.begin_epoch(1)
        alone = Publish(0, Block.of([b"alone"]))
        joiner.queue.append(1, alone, ops.encode(alone))
        joiner.join()
        await joiner.run()
        joiner.check_same()
        assert source.states_given == 1

    scenario(tmp_path, play)


def test_empty_queue_is_caught_up_at_once(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(1)
        source.remove((0, 0))
        joiner.join()
        await joiner.run()
        joiner.check_same()
        assert source.asked == []

    scenario(tmp_path, play)


def test_state_that_is_ahead_of_the_ring_waits_for_it(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(5)
        joiner.join()
        source.publish_many(4)
        source.remove((0, 1))
        running = asyncio.create_task(joiner.run())
        await until(lambda: source.states_given == 1)
        joiner.deliver(1)
        await asyncio.sleep(0.01)
        assert joiner.queue.state.last_number == 0
        joiner.deliver()
        await running
        joiner.check_same()
        assert source.states_given == 1

    scenario(tmp_path, play)


def test_state_of_a_master_that_died_with_it_is_not_installed(tmp_path: Path) -> None:
    """The ring goes on without the ops that the old master alone had; see `joining`."""

    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(5)
        joiner.join()
        dead = Source(joiner.store.open_queue("dead"))
        dead.queue.begin_epoch(1)
        for name in ("m0", "m1", "m2", "m3", "m4"):
            dead.publish(name)
        while dead.queue.state.last_number < source.queue.state.last_number + 2:
            dead.publish("ghost")
        source.queue.begin_epoch(2)
        while source.queue.state.last_number < dead.queue.state.last_number:
            source.publish_many(2)
        states = [dead, source]

        async def fetch_state(number: int) -> ReplicatedState:
            return await states.pop(0).fetch_state(number)

        assert joiner.joining is not None
        running = asyncio.create_task(joiner.joining.run(fetch_state, source.fetch_messages))
        await until(lambda: dead.states_given == 1)
        joiner.deliver()
        await running
        await joiner.store.sync()
        joiner.check_same()
        assert states == []

    scenario(tmp_path, play)


def test_state_that_never_comes_around_the_ring_is_asked_for_again(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(5)
        joiner.join()
        ahead = Source(joiner.store.open_queue("ahead"))
        for _ in range(9):
            ahead.publish("ghost")
        states = [ahead, source]

        async def fetch_state(number: int) -> ReplicatedState:
            return await states.pop(0).fetch_state(number)

        assert joiner.joining is not None
        await joiner.joining.run(fetch_state, source.fetch_messages)
        joiner.check_same()

    scenario(tmp_path, play)


@pytest.mark.parametrize(
    "error", [SourceError("down"), BrokerError(Reason.NO_MASTER, "down")], ids=repr
)
def test_source_fails_in_between_and_what_was_fetched_is_kept(
    tmp_path: Path, error: Exception
) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(12)

        async def fail_at_first_state() -> None:
            source.before_state = None
            raise error

        async def fail_at_third_piece(piece: int) -> None:
            if piece == 2:
                source.before_piece = None
                raise error

        source.before_state = fail_at_first_state
        source.before_piece = fail_at_third_piece
        joiner.join()
        await joiner.run()
        joiner.check_same()
        assert source.states_given == 1
        assert source.asked == [[(0, 11)], [(6, 11)]]

    scenario(tmp_path, play)


def test_acks_of_missing_messages_while_fetching(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(12)
        joiner.join()

        async def remove_all_but_one(piece: int) -> None:
            if piece == 1:
                # Acks on their way here, already applied at the source: both orders happen.
                source.remove((0, 1), (5, 10))
                joiner.deliver()

        source.before_piece = remove_all_but_one
        await joiner.run()
        await joiner.store.sync()
        joiner.check_same()
        assert [*joiner.queue.state.live] == [(2, 4), (11, 11)]

    scenario(tmp_path, play)


def test_source_has_nothing_more_until_its_acks_arrive(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(6)
        joiner.join()

        async def gone(piece: int) -> None:
            if piece == 0:
                source.remove((3, 5))

        source.before_piece = gone
        running = asyncio.create_task(joiner.run())
        # It asks again and again for the missing ops; only the ring can bring them.
        await until(lambda: source.asked.count([(3, 5)]) >= 2)
        assert not running.done()
        joiner.deliver()
        await running
        await joiner.store.sync()
        joiner.check_same()

    scenario(tmp_path, play)


def test_cancelled_in_the_middle_it_fetches_no_more(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(12)
        joiner.join()
        assert joiner.joining is not None

        async def cancel(piece: int) -> None:
            if piece == 1 and joiner.joining is not None:
                joiner.joining.cancelled = True

        source.before_piece = cancel
        await joiner.run()
        assert [*joiner.queue.missing] == [(3, 11)]
        assert source.pieces_ended == 1
        # The next run goes on where this one ended.
        source.before_piece = None
        joiner.join()
        await joiner.run()
        joiner.check_same()
        assert source.asked[1] == [(3, 11)]

    scenario(tmp_path, play)


def test_cancelled_while_it_waits_for_the_state_it_changes_nothing(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(4)
        joiner.join()

        async def cancel() -> None:
            assert joiner.joining is not None
            joiner.joining.cancelled = True

        source.before_state = cancel
        await joiner.run()
        assert joiner.queue.state.last_number == 0
        assert source.asked == []

    scenario(tmp_path, play)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_state_is_not_installed_while_an_operator_decides_for_the_log(
    tmp_path: Path, is_cancelled: bool
) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(10)
        joiner.join()
        joiner.none_open.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(joiner.run())
            await until(lambda: source.states_given == 1)
            source.publish_many(5)
            joiner.deliver()
            for _ in range(100):
                await asyncio.sleep(0)
            assert joiner.queue.state.last_number == 0
            if is_cancelled:
                # The ring goes on from this log.
                assert joiner.joining is not None
                joiner.joining.cancel()
            joiner.none_open.set()
        if is_cancelled:
            assert joiner.queue.state.last_number == 0
        else:
            joiner.check_same()

    scenario(tmp_path, play)


def test_own_log_is_kept_up_to_where_it_parts(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(4)
        for op in source.log:
            joiner.apply(*op)
        mine = Publish(4, Block.of([b"mine alone"] * 3))
        joiner.apply(2, 1, ops.encode(mine))
        source.queue.begin_epoch(2)
        source.publish_many(6)
        source.remove((1, 1))
        joiner.join()
        await joiner.run()
        joiner.check_same()
        assert source.asked == [[(4, 9)]]

    scenario(tmp_path, play)


def test_damaged_log_is_fetched_anew(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(4)
        for op in source.log:
            joiner.apply(*op)
        joiner.queue.damaged = True
        joiner.join()
        await joiner.run()
        joiner.check_same()
        assert source.asked == [[(0, 3)]]
        assert not joiner.queue.damaged

    scenario(tmp_path, play)


def test_what_waits_for_the_state_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining_module, "HELD_BACK_BYTES_MAX", 400)

    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(2)
        joiner.join()
        early = await source.fetch_state(0)
        states = [early]

        async def fetch_state(number: int) -> ReplicatedState:
            if not states:
                return await source.fetch_state(number)
            for _ in range(30):
                source.publish_many(1)
            joiner.deliver()
            return states.pop()

        assert joiner.joining is not None
        await joiner.joining.run(fetch_state, source.fetch_messages)
        joiner.check_same()
        # The first state was too old by then; the bodies of the newest came with the ring.
        assert source.states_given == 2
        assert source.asked[0][0][0] == 0
        assert source.asked[0][0][1] < 31

    scenario(tmp_path, play)


def test_ops_that_waited_for_the_state_are_applied_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a millisecond here, and 20 ms of them may hold the loop at most. Ops that come
    between two pieces go behind those that wait; above the limit of bytes, none is dropped."""
    waited = 60
    applied_in_turn: Counter[int] = Counter()

    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(2)
        joiner.join()
        turn = 0

        async def turns() -> None:
            nonlocal turn
            while True:
                await asyncio.sleep(0)
                turn += 1
                if 0 < joiner.queue.state.last_number < source.queue.state.last_number:
                    monkeypatch.setattr(joining_module, "HELD_BACK_BYTES_MAX", 100)
                    source.publish_many(1)
                    joiner.deliver()

        def apply_slowly(number: int, epoch: int, payload: bytes) -> None:
            until_s = time.perf_counter() + 0.001
            while time.perf_counter() < until_s:
                pass
            applied_in_turn[turn] += 1
            joiner.apply(number, epoch, payload)

        async def fetch_state(number: int) -> ReplicatedState:
            state = await source.fetch_state(number)
            for _ in range(waited):
                source.publish_many(1)
            joiner.deliver()
            return state

        assert joiner.joining is not None
        monkeypatch.setattr(joiner.joining, "_apply", apply_slowly)
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(turns())
            await joiner.joining.run(fetch_state, source.fetch_messages)
            ticking.cancel()
        await joiner.store.sync()
        joiner.check_same()
        # The limit of bytes has the rest applied at once, so it is not a piece of this work.
        assert applied_in_turn[min(applied_in_turn)] <= 20
        assert sum(applied_in_turn.values()) > waited

    scenario(tmp_path, play)


def test_store_that_fails_ends_it_without_a_word(tmp_path: Path) -> None:
    """The store itself tells the node; nobody may be told that this replica has caught up."""

    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(6)
        joiner.join()

        async def fail(piece: int) -> None:
            joiner.store.failure = StoreClosedError("closed")

        source.before_piece = fail
        await joiner.run()
        assert joiner.joining is not None
        assert joiner.joining.cancelled

    scenario(tmp_path, play)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_comes_in_between_both_end_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    def act(source: Source) -> None:
        live = source.queue.state.live
        choice = rng.random()
        if choice < 0.5 or not live:
            names = [f"{seed}.{rng.random()}" for _ in range(rng.randint(1, 5))]
            source.publish(*names, transient=rng.random() < 0.2)
        else:
            first = rng.randint(live.first, live.last)
            pair = (first, first + rng.randint(0, 4))
            source.remove(pair) if choice < 0.8 else source.requeue(pair)

    async def play(source: Source, joiner: Joiner) -> None:
        for _ in range(rng.randint(0, 12)):
            act(source)
        diverged = rng.random() < 0.5
        for op in source.log[: None if diverged else rng.randint(0, len(source.log))]:
            joiner.apply(*op)
        if diverged:
            # The master of epoch 1 itself: its last op has reached nobody.
            first = joiner.queue.state.next_position
            alone = Publish(first, Block.of([b"alone"] * rng.randint(1, 8)))
            joiner.apply(joiner.queue.state.last_number + 1, 1, ops.encode(alone))
            source.queue.begin_epoch(2)
        for _ in range(rng.randint(0, 12)):
            act(source)
        joiner.join()

        async def disturb(piece: int = 0) -> None:
            for _ in range(rng.randint(0, 2)):
                act(source)
            joiner.deliver(rng.randint(0, 3))
            if rng.random() < 0.1:
                raise SourceError("planted")

        source.before_state = source.before_piece = disturb
        running = asyncio.create_task(joiner.run())
        for _ in range(30):
            await asyncio.sleep(0)
            act(source)
            joiner.deliver(rng.randint(0, 3))
        source.before_state = source.before_piece = None
        while not running.done():
            joiner.deliver()
            await asyncio.sleep(0)
        await running
        joiner.deliver()
        await joiner.store.sync()
        joiner.check_same()

    # Half of them as on a machine so busy that each look at the clock ends a piece.
    now = itertools.count()
    with timed_by(lambda: next(now)) if seed % 2 else nullcontext():
        scenario(tmp_path, play)


def test_a_state_of_many_ranges_is_packed_in_pieces_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the answer to the joiner, and for the checkpoint with which the joiner's journal begins.
    The checkpoint was packed in one piece, of 60 ms at 200 000 ranges."""
    messages = 4 * RANGES_PACKED_MAX + 20
    packed_in_turn = [0]
    pack = RangeSet.pack

    def counted(self: RangeSet, start: int = 0, stop: int | None = None) -> bytes:
        data = pack(self, start, stop)
        packed_in_turn[-1] += len(data) // 16
        return data

    async def count_turns() -> None:
        while True:
            packed_in_turn.append(0)
            await asyncio.sleep(0)

    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(messages)
        source.remove(*((at, at) for at in range(1, messages, 2)))
        source.requeue(*((at, at) for at in range(0, messages, 4)))
        joiner.join()
        monkeypatch.setattr(RangeSet, "pack", counted)
        # Each look at the clock ends a piece.
        now = itertools.count()
        with timed_by(lambda: next(now)):
            tasks = [asyncio.create_task(count_turns()), asyncio.create_task(joiner.run())]
            await until(lambda: bool(joiner.queue.missing))
        for task in tasks:
            task.cancel()
        assert joiner.queue.state.is_same(source.queue.state)
        assert sum(packed_in_turn) >= 2 * (messages // 2 + messages // 4)
        assert max(packed_in_turn) <= RANGES_PACKED_MAX

    scenario(tmp_path, play)
