"""Many queues whose shares wait, go, and are given up, in every order; and what `sync` promises.

Random steps of eight queues, worked by hand: messages that are small, in the message store, or
larger than a round; removes, fan-outs, purges of what waits, journals that are sealed, other
states, deletions, and calls of `sync`. Each call has to return, and then all is durable that was
appended before it. In the end the power is cut, at any place of the last writes, or the store is
closed, or its disk fails first.

    python -m node.tests.storage.engine.test_interleaved_shares 600 1000

runs for so many seconds, from that seed on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from node.tests.storage.engine.hand import Hand, by_hand
from node.tests.storage.engine.machine import ROOT
from node.tests.storage.simulated_disk import Kept, SimulatedDisk

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.errors import StoreFailedError

LIMITS = StoreLimits(
    journal_entries_max=60,
    journal_bytes_max=6_000,
    flush_piece_bytes_max=1_000,
    sync_threads=2,
    embed_below=150,
    store_block_bytes_max=900,
    store_file_bytes_max=2_500,
    compaction_piece_bytes_max=600,
    store_cache_bytes_max=0,
    commit_log_bytes_max=4_000,
    write_behind_bytes_max=800,
)
STEPS = 120


def random_limits(rng: random.Random) -> StoreLimits:
    some = rng.choice
    return replace(
        LIMITS,
        round_queues_max=some([1, 3, 8]),
        round_bytes_max=some([300, 500, 2_000]),
        share_bytes_max=some([1, 200, 700, 4_000]),
        sync_in_place_bytes_max=some([0, 1_000]),
        commit_log_queues_min=some([1, 2, 4]),
        unsynced_bytes_max=some([2_000, 1 << 20]),
    )


def bodies(queue: QueueStore) -> dict[int, bytes]:
    """Everything that can be read, by position."""
    runs = queue.read(0, 1 << 62, bytes_max=1 << 30, messages_max=1 << 30)
    return {
        at: body for run in runs for at, body in enumerate(run.block.bodies(), run.first_position)
    }


@dataclass(eq=False)
class Life:
    """One queue, and what it had after each op."""

    queue: QueueStore
    # The number of the last op, and the live messages.
    moments: list[tuple[int, dict[int, bytes]]] = field(default_factory=lambda: [(0, {})])
    # The place of the moment that was reported durable; it counts again from each install.
    promised: int = 0
    installed: int = 0

    @property
    def live(self) -> dict[int, bytes]:
        return dict(self.moments[-1][1])

    def promise(self) -> None:
        number = self.queue.durable_number
        if self.queue.durable_number:
            at = self.installed + number - self.moments[self.installed][0]
            assert at >= self.promised
            self.promised = at

    def append(self, op: Op, live: dict[int, bytes]) -> None:
        number = self.queue.state.last_number + 1
        self.queue.append(number, op, ops.encode(op))
        self.moments.append((number, live))


class Node:
    """A store with its queues. `calls` of `sync`, each with the moments that it waits for."""

    def __init__(self, hand: Hand, seed: int) -> None:
        self.hand, self.rng = hand, random.Random(seed)
        self.disk = SimulatedDisk()
        self.limits = random_limits(self.rng)
        self.store = Store.open(ROOT, cluster_id="c", node="n", disk=self.disk, limits=self.limits)
        self.crowded = False
        self.store.on_crowded = self.note_crowded
        self.store.on_failed = lambda error: None
        self.store.on_durable = lambda queue: self.lives[queue.queue].promise()
        self.lives = {f"q{at}": Life(self.store.open_queue(f"q{at}")) for at in range(8)}
        self.calls: list[tuple[asyncio.Task[None], list[tuple[Life, int]]]] = []
        self.running = hand.loop.create_task(self.store.run())
        hand.turn()

    def note_crowded(self, on: bool) -> None:
        assert on != self.crowded
        self.crowded = on

    def publish(self, names: list[str], sizes: list[int], message_id: bytes = b"") -> None:
        for name in names:
            life = self.lives[name]
            at = life.queue.state.next_position
            texts = [b"x" * size if message_id else self.rng.randbytes(size) for size in sizes]
            life.append(
                Publish(at, Block.of(texts), message_id=message_id),
                {**life.live, **dict(enumerate(texts, at))},
            )

    def remove(self, name: str, first: int, last: int) -> None:
        life = self.lives[name]
        kept = {at: text for at, text in life.live.items() if not first <= at <= last}
        life.append(Remove(((first, last),)), kept)

    def install(self, name: str) -> None:
        """What the ring has: some of the newest messages never were."""
        life = self.lives[name]
        old = life.queue.state
        below = max(old.next_position - self.rng.choice([0, 1, 3, 20]), 0)
        live = {at: text for at, text in life.live.items() if at < below}
        state = replace(
            old,
            last_number=old.last_number + self.rng.randint(1, 3),
            next_position=below,
            epochs=[*old.epochs],
            live=RangeSet((at, at) for at in live),
            redelivered=RangeSet(),
            transient=RangeSet(),
            producers={},
        )
        state.begin_epoch(old.epoch + 1)
        life.queue.install(state, keep_below=below)
        life.moments.append((state.last_number, live))
        life.installed = len(life.moments) - 1

    def delete(self, name: str) -> None:
        self.store.delete_queue(name)
        self.lives[name] = Life(self.store.open_queue(name))

    def sync(self) -> None:
        waits = [(life, len(life.moments) - 1) for life in self.lives.values()]
        self.calls.append((self.hand.loop.create_task(self.store.sync()), waits))
        self.hand.turn()

    def random_step(self) -> None:
        rng = self.rng
        name = rng.choice([*self.lives])
        queue = self.lives[name].queue
        choice = rng.random()
        if choice < 0.4:
            sizes = [rng.choice([3, 40, 300, 800, 3_000])] * rng.choice([1, 1, 2, 9])
            self.publish([name], sizes)
        elif choice < 0.47:
            names = rng.sample([*self.lives], rng.randint(2, 8))
            self.publish(names, [rng.choice([300, 800])], rng.randbytes(16))
        elif choice < 0.65 and queue.state.live:
            first = queue.state.live.first
            self.remove(name, first, first + rng.choice([0, 0, 3, 100]))
        elif choice < 0.72:
            at = queue.state.next_position
            self.publish([name], [rng.choice([3, 300, 800])] * 2)
            self.remove(name, at, at + rng.choice([0, 1]))
        elif choice < 0.76:
            queue.seal()
        elif choice < 0.79:
            self.install(name)
        elif choice < 0.81:
            self.delete(name)
        elif choice < 0.9:
            self.sync()
        else:
            self.hand.pass_time(1.0)

    def check(self) -> None:
        self.store._commit._gathering.check()
        for life in self.lives.values():
            life.queue.check()
        self.store.messages(transient=False).check()
        self.check_calls()

    def check_calls(self) -> None:
        for call, waits in [*self.calls]:
            if not call.done():
                assert self.store.failure is None, "it would wait for ever"
                continue
            self.calls.remove((call, waits))
            if call.exception() is not None:
                assert self.store.failure is not None
                continue
            for life, at in waits:
                if self.lives[life.queue.queue] is life and at >= life.installed:
                    number, _ = life.moments[at]
                    assert life.queue.durable_number >= number

    def settle(self) -> None:
        self.hand.settle()
        self.check()
        assert not self.calls
        assert not self.crowded
        assert self.store.counters.unsynced_bytes == 0
        for life in self.lives.values():
            assert life.queue.durable_number == life.queue.state.last_number

    def run(self, steps: int) -> None:
        for _ in range(steps):
            with suppress(StoreFailedError):
                self.random_step()
            for _ in range(self.rng.choice([0, 0, 1, 1, 4])):
                self.hand.step(self.rng)
            if self.store.failure is not None:
                # Whoever waits is told in the next turn.
                self.hand.turn()
                self.check_calls()
                return
            self.check()

    def cut(self, kept: Kept) -> None:
        """Nothing that was reported durable is gone, and nothing was made up."""
        for life in self.lives.values():
            if life.queue.durable_number:
                life.promise()
        for call, _ in self.calls:
            call.cancel()
        self.running.cancel()
        self.hand.turn()
        self.hand.drop()
        left = self.disk.power_cut(kept, self.rng)
        for _ in range(2):
            again = Store.open(ROOT, cluster_id="c", node="n", disk=left, limits=self.limits)
            found = {name: again.open_queue(name) for name in self.lives}
            for name, queue in found.items():
                life = self.lives[name]
                queue.check()
                assert not queue.corruptions
                assert not queue.damaged
                assert not queue.missing
                moments = life.moments[life.promised :]
                assert (queue.state.last_number, bodies(queue)) in moments, name
            self.running = self.hand.loop.create_task(again.run())
            for _ in range(3):
                # What nobody refers to goes.
                self.hand.settle()
                self.hand.pass_time(2.0)
            assert again.failure is None
            self.running.cancel()
            self.hand.turn()
            self.hand.drop()

    def close(self) -> None:
        """All that waits is written, in whatever share it is."""
        self.store.close()
        self.hand.loop.run_until_complete(self.running)
        self.hand.turn()
        self.check_calls()
        assert not self.calls
        left = self.disk.power_cut("nothing", self.rng)
        again = Store.open(ROOT, cluster_id="c", node="n", disk=left, limits=self.limits)
        for name, life in self.lives.items():
            queue = again.open_queue(name)
            assert (queue.state.last_number, bodies(queue)) == life.moments[-1], name


def run(seed: int) -> None:
    with by_hand(segment_positions=16) as hand:
        node = Node(hand, seed)
        node.run(node.rng.randint(1, STEPS))
        end = node.rng.random()
        if end < 0.2:
            node.close()
            return
        if end < 0.4:
            node.settle()
            node.run(node.rng.randint(1, STEPS))
        elif end < 0.6:
            # The disk fails, after some more writes.
            node.disk.writes_left = node.rng.randint(0, 30)
            node.run(STEPS)
        node.cut(node.rng.choice(["nothing", "everything", "anything"]))


def main() -> int:
    logging.disable(logging.CRITICAL)
    until = time.monotonic() + float(sys.argv[1])
    seed = int(sys.argv[2])
    while time.monotonic() < until:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        seed += 1
    print(f"up to seed {seed}")
    return 0


@pytest.mark.parametrize("seed", range(25))
def test_every_order_keeps_what_was_promised(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", range(25, 30))
def test_all_comes_to_an_end(seed: int) -> None:
    with by_hand(segment_positions=16) as hand:
        node = Node(hand, seed)
        for _ in range(3):
            node.run(STEPS)
            node.settle()
        node.close()


if __name__ == "__main__":
    sys.exit(main())
