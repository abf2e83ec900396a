"""The whole engine (`Store`, `QueueStore`, `QueueMaster` on a simulated disk) beside a plain model.

The model of a queue is a dict of messages. It plays the replica's part of the contract:
ops go to the store in order, watermarks to the master when the store reports. After a
stop, clean or not, it looks up which moment came back, and goes on from there.

The oracle: each live message can be read, with its bytes and properties, in order, and with
`redelivered` as the ops have set it. Lengths and bytes are equal at every step. A restart brings
back a moment that happened, and none before the last one that was reported durable.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from node.tests.storage.engine.hand import Hand
from node.tests.storage.engine.model import Message, Queue, positions_of, ranges_of
from node.tests.storage.simulated_disk import Kept, SimulatedDisk

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.queue.changes import BodyChanges
from ringmq_node.storage.queue.loading import load_segment

ROOT = Path("/data")
# Of the last one nothing comes back.
NAMES = ("a", "b", "t")
TRANSIENT = "t"


@dataclass
class Sizes:
    """The messages of a queue as its model knows them."""

    queue: Queue

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        raise AssertionError(f"positions {first} to {last} are fetched")

    read = fetch

    @property
    def missing(self) -> RangeSet:
        return self.queue.store.missing

    def bytes_in(self, first: int, last: int) -> int:
        messages = self.queue.messages
        return sum(len(messages[at].body) for at in range(first, last + 1) if at in messages)


@dataclass
class Engine:
    """One node's store and its queues. `rng` makes the choices that no step makes: contents, and
    the bytes that a power cut keeps."""

    hand: Hand
    limits: StoreLimits
    rng: random.Random
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    queues: dict[str, Queue] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    # How likely other work comes between two steps of the changes of a state.
    unrest: float = 0.1

    def __post_init__(self) -> None:
        self.start()
        for name in NAMES:
            self.create(name)

    # -- the node

    def start(self) -> None:
        self.store = Store.open(ROOT, cluster_id="c", node="n", disk=self.disk, limits=self.limits)
        self.store.on_durable = self.durable
        self.running = self.hand.loop.create_task(self.store.run())
        self.hand.turn()

    def create(self, name: str) -> None:
        durable = name != TRANSIENT
        queue = Queue(name, self.store.open_queue(name, durable=durable), durable)
        assert not queue.store.state.last_number
        queue.note()
        queue.begin_mastership()
        self.queues[name] = queue

    def durable(self, store: QueueStore) -> None:
        queue = self.queues[store.queue]
        queue.promised()
        queue.watermarks()

    def delete(self, name: str) -> None:
        """And a new one of that name is declared."""
        self.events["deleted"] += 1
        self.store.delete_queue(name)
        self.create(name)

    def stop(self) -> None:
        """As a node does it: clean."""
        self.store.close()
        self.hand.loop.run_until_complete(self.running)
        self.count()
        for queue in self.queues.values():
            del queue.moments[:-1]
        self.come_back()

    def abandon(self) -> None:
        """The process is gone."""
        self.running.cancel()
        self.hand.turn()
        self.hand.drop()

    def cut_power(self, kept: Kept) -> None:
        self.abandon()
        self.count()
        self.disk = self.disk.power_cut(kept, self.rng)
        self.come_back()

    def kill(self) -> None:
        """The process is gone, the disk keeps all that was written."""
        self.cut_power("everything")

    def count(self) -> None:
        """Adds up the events until now."""
        found = self.store.statistics()
        for name in (
            "journals_sealed",
            "messages_elided",
            "segments_deleted",
            "segment_bytes_written",
            "blocks_read",
        ):
            self.events[name] += getattr(found, name)
        for name in ("compactions", "holes", "files_deleted", "records_shared"):
            self.events[name] += getattr(found.messages, name)
            self.events[name] += getattr(found.messages_transient, name)
        self.events["paged"] += found.messages_transient.file_bytes_now
        assert not found.failed_now

    def come_back(self) -> None:
        self.events["restarts"] += 1
        self.start()
        # A queue to which nothing was ever written has nothing on the disk either.
        assert {*self.store.queue_names()} <= self.queues.keys() - {TRANSIENT}
        for name in self.queues:
            if name == TRANSIENT:
                self.create(name)
            else:
                self.recovered(self.queues[name], self.store.open_queue(name))
        self.check()

    def recovered(self, queue: Queue, store: QueueStore) -> None:
        queue.store = store
        store.check()
        state = store.state
        assert not store.corruptions, store.corruptions
        assert not store.damaged
        assert not state.transient
        found = [moment for moment in queue.moments if moment.is_state(state)]
        assert found, (
            f"{queue.name}: op {state.last_number} live {state.live} redelivered "
            f"{state.redelivered} came back, durable was {queue.moments[0]}"
        )
        queue.missing = set(positions_of(store.missing))
        lacking = max((moment.missing for moment in found), key=len)
        assert queue.missing <= lacking, f"{queue.name}: {queue.missing} lost, of {found[-1]}"
        queue.messages = {**found[-1].messages}
        queue.timeline += 1
        queue.moments.clear()
        queue.note()
        queue.graves = {at: m for at, m in queue.graves.items() if at < state.next_position}
        queue.begin_mastership()
        self.fill(queue)
        queue.store.pager.set_lazy(queue.lazy)
        queue.take_over()

    # -- the background

    def work(self, steps: int) -> None:
        """Lets threads and loop go on, in any order."""
        for _ in range(steps):
            if not self.hand.step(self.rng):
                return

    def settle(self) -> None:
        """Until all is durable, flushed, and read."""
        self.hand.settle()
        assert self.store.counters.unsynced_bytes == 0
        for queue in self.queues.values():
            assert queue.store.durable_number == queue.store.state.last_number
            assert queue.store.fills_durable
        # Places in the transient store are given back at once, but for those of dead deltas.
        queues = [queue.store for queue in self.queues.values()]
        if not any(queue.bodies.condemned for queue in queues):
            expected = check_references(self.store, queues)
            found = self.store.messages(transient=True).statistics()
            assert found.records_now == sum(transient for transient, _ in expected), found

    def pass_time(self, seconds: float) -> None:
        self.hand.pass_time(seconds)

    def remember(self, duration_s: float) -> None:
        """The memory monitor looks at the rates, and says how long messages may last."""
        self.store.ram_durations(self.hand.loop.now)
        self.store.set_duration(duration_s)

    # -- the clients

    def publish(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        *,
        transient: bool = False,
        properties: int = 0,
    ) -> None:
        """To several queues: one block, one id. `properties`: none, one for all, or one each."""
        stamp = self.rng.randbytes(4)
        bodies = [(stamp + b"%d" % at).ljust(size)[:size] for at, size in enumerate(sizes)]
        said = [b"p%d" % at for at in range((0, 1, len(sizes))[properties])]
        block = Block.of(bodies, said)
        each = said if len(said) == len(sizes) else (said or [b""]) * len(sizes)
        message_id = self.rng.randbytes(16) if len(names) > 1 else b""
        for name in names:
            queue = self.queues[name]
            first = queue.store.state.next_position
            op = Publish(first, block, transient, message_id=message_id)
            number = queue.append(op)
            for at, (body, its) in enumerate(zip(bodies, each, strict=True), first):
                queue.messages[at] = Message(body, its, transient)
                queue.ready.add(at)
            queue.note()
            queue.do(queue.master.published(number, op, -1))

    def consume(self, name: str, messages: int, size: int = 1 << 30) -> int:
        """A consumer with room for so many."""
        queue = self.queues[name]
        queue.consumers += 1
        queue.clients[queue.consumers] = set()
        queue.do(queue.master.consumer_opened(queue.consumers, ConsumerTerms(messages, size)))
        queue.do(queue.master.consumer_begun(queue.consumers))
        return queue.consumers

    def settle_messages(
        self, name: str, consumer: int, removed: Iterable[int], requeued: Iterable[int] = ()
    ) -> None:
        """Acks (or discards) and requeues messages of this consumer."""
        queue = self.queues[name]
        removed, requeued = sorted(removed), sorted(requeued)
        queue.clients[consumer] -= {*removed, *requeued}
        queue.do(
            queue.master.settle(consumer, acked=ranges_of(removed), requeued=ranges_of(requeued))
        )

    def settle_some(self, name: str, which: int, order: str, requeue: bool) -> None:
        """One of the consumers acks or requeues some of its messages."""
        clients = self.queues[name].clients
        consumer = sorted(clients)[which % len(clients)]
        has = sorted(clients[consumer])
        chosen = {
            "first": has[:3],
            "last": has[-3:],
            "every other": has[::2],
            "any": self.rng.sample(has, min(len(has), 4)),
            "all": has,
        }[order]
        removed, requeued = ([], chosen) if requeue else (chosen, [])
        self.settle_messages(name, consumer, removed, requeued)

    def disconnect(self, name: str, consumer: int) -> None:
        queue = self.queues[name]
        del queue.clients[consumer]
        queue.do(queue.master.consumer_closed(consumer))

    def take(self, name: str, messages: int, size: int = 1 << 30) -> list[int]:
        """Fetches and removes, without an ack."""
        queue = self.queues[name]
        queue.consumers += 1
        visible = sorted(at for at in queue.ready if at < queue.master.visible_below)
        runs, effects = queue.master.take(queue.consumers, messages, size)
        taken = queue.seen(runs)
        assert taken == visible[: len(taken)]
        assert bool(taken) == bool(visible and messages)
        queue.ready -= {*taken}
        queue.do(effects)
        return taken

    def purge(self, name: str) -> None:
        queue = self.queues[name]
        queue.consumers += 1
        count, effects = queue.master.purge(queue.consumers)
        assert count == len(queue.ready)
        queue.ready.clear()
        queue.do(effects)

    def browse(self, name: str, first: int, last: int, size: int = 1 << 30) -> None:
        queue = self.queues[name]
        there = [at for at in sorted(queue.messages) if first <= at <= last]
        found = queue.seen(queue.store.read(first, last, bytes_max=size, messages_max=1 << 30))
        assert found == there[: len(found)]
        assert bool(found) == bool(there)
        got = sum(len(queue.messages[at].body) for at in found)
        assert len(found) <= 1 or got <= size
        if len(found) < len(there) and found:
            assert 2 * got >= size or got + len(queue.messages[there[len(found)]].body) > size
        expected = sum(len(queue.messages[at].body) for at in there)
        assert queue.store.bytes_in(first, last) == expected

    def set_lazy(self, name: str, lazy: bool) -> None:
        self.queues[name].lazy = lazy
        self.queues[name].store.pager.set_lazy(lazy)

    # -- catching up

    def catch_up(self, name: str, cut: int, more: int, revived: int) -> None:
        """Installs the ring's state, and fetches the bodies that are missing in it."""
        self.install(name, cut, more, revived)
        self.work(self.rng.randint(0, 5))
        self.fill(self.queues[name])
        self.queues[name].take_over()

    def install(self, name: str, cut: int, more: int, revived: int) -> None:
        """The ring agreed on a log that parted from ours: it has other messages at the end, and
        has not removed some that we have."""
        queue = self.queues[name]
        old = queue.store.state
        keep_below = max(0, old.next_position - cut)
        messages = {at: m for at, m in queue.messages.items() if at < keep_below}
        for at in sorted(queue.graves)[-revived:] if revived else ():
            if at < keep_below and at not in messages:
                messages[at] = replace(queue.graves[at], redelivered=False)
        for at in range(keep_below, keep_below + more):
            body = self.rng.randbytes(4).ljust(self.rng.choice((4, 300)))
            messages[at] = Message(body, b"", self.rng.random() < 0.2)
        state = ReplicatedState(
            last_number=old.last_number + 3,
            next_position=keep_below + more,
            epochs=[*old.epochs],
            live=RangeSet((at, at) for at in messages),
            redelivered=RangeSet(ranges_of(flagged(messages, "redelivered"))),
            transient=RangeSet(ranges_of(flagged(messages, "transient"))),
        )
        state.begin_epoch(old.epoch + 1)
        # With the old messages: their master may go on to deliver them meanwhile.
        changes = self.computed(queue, state, keep_below)
        queue.messages = messages
        queue.graves.clear()
        queue.timeline += 1
        queue.store.install(state, keep_below=keep_below, changes=changes)
        queue.begin_mastership()
        queue.missing = set(positions_of(queue.store.missing))
        queue.note()

    def computed(self, queue: Queue, state: ReplicatedState, keep_below: int) -> BodyChanges | None:
        """What the state will change, if it is computed before; other work may come between."""
        if self.rng.random() < 0.3:
            return None
        bodies = queue.store.bodies
        changes = BodyChanges(bodies, state, keep_below, durable=queue.store.durable)
        for _ in changes.steps():
            if self.rng.random() < self.unrest:
                self.do_other_work(queue)
        current = changes.are_current(state, keep_below)
        self.events["changes of a state: " + ("current" if current else "outdated")] += 1
        return changes

    def do_other_work(self, queue: Queue) -> None:
        """What a node may do between two steps: a thread goes on, messages are paged, or read."""
        what = self.rng.random()
        if what < 0.15:
            self.remember(self.rng.choice((0.0, float("inf"))))
        elif what < 0.3 and queue.messages:
            first = self.rng.choice(sorted(queue.messages))
            self.browse(queue.name, first, first + self.rng.randint(0, 12))
        self.work(1)

    def fill(self, queue: Queue) -> None:
        """Fetches missing bodies from another replica, while other work goes on."""
        while queue.missing:
            first = last = min(queue.missing)
            transient = queue.messages[first].transient
            longest = self.rng.randint(1, 9)
            while last + 1 in queue.missing and last - first < longest:
                if queue.messages[last + 1].transient != transient:
                    break
                last += 1
            batch = [queue.messages[at] for at in range(first, last + 1)]
            block = Block.of([m.body for m in batch], [m.properties for m in batch])
            queue.store.fill(first, block, transient)
            queue.missing -= {*range(first, last + 1)}
            queue.note()
            self.work(self.rng.randint(0, 2))

    # -- the invariants

    def check(self) -> None:
        for queue in self.queues.values():
            self.check_queue(queue)
        for transient in (False, True):
            self.store.messages(transient=transient).check()
        check_references(self.store, [queue.store for queue in self.queues.values()])
        self.store._commit._gathering.check()
        held = sum(q.store.bodies.index.memory_bytes for q in self.queues.values())
        assert self.store.counters.queue_memory_bytes == held

    def check_queue(self, queue: Queue) -> None:
        store, master = queue.store, queue.master
        store.check()
        # If the master's check asked the store for sizes, the store would unfold its deltas.
        real = master._ready._messages
        master._ready._messages = master.consumers._messages = Sizes(queue)
        master.check()
        master._ready._messages = master.consumers._messages = real
        assert positions_of(store.state.live) == sorted(queue.messages)
        assert positions_of(store.state.redelivered) == flagged(queue.messages, "redelivered")
        assert positions_of(store.state.transient) == flagged(queue.messages, "transient")
        assert set(positions_of(store.missing)) == queue.missing
        assert store.live_bytes == sum(len(message.body) for message in queue.messages.values())
        assert set(positions_of(master.ready)) == queue.ready
        assert master.unacknowledged == sum(map(len, queue.clients.values()))
        chain = store.pager.chain()
        total = chain.pending + chain.q4 + chain.q3 + chain.delta + chain.q2 + chain.q1
        assert total == len(queue.messages)

    def drain(self) -> None:
        """All that is there can be had, in order; and then nothing is left of it."""
        self.settle()
        for name, queue in self.queues.items():
            for consumer in [*queue.clients]:
                self.disconnect(name, consumer)
            self.settle()
            expected = sorted(queue.messages)
            assert expected == sorted(queue.ready)
            got: list[int] = []
            while taken := self.take(name, self.rng.randint(1, 40)):
                got += taken
                self.work(3)
            assert got == expected
            self.settle()
            assert not queue.messages
        self.settle()
        self.check()
        for transient in (False, True):
            found = self.store.messages(transient=transient).statistics()
            assert found.records_now == 0, f"{found.records_now} records are referred to for ever"

    def end(self) -> None:
        self.store.close()
        self.hand.loop.run_until_complete(self.running)
        self.count()


def check_references(
    store: Store, queues: Iterable[QueueStore]
) -> Counter[tuple[bool, RecordLocation]]:
    """Each record of the message stores is referred to at least as often as the queues say, which
    is returned.

    At the end, when nothing is left in any queue, nothing may be referred to (`drain`).
    """
    expected: Counter[tuple[bool, RecordLocation]] = Counter()
    for queue in queues:
        expected.update(references(store, queue))
    for (transient, location), count in expected.items():
        catalogue = store.messages(transient=transient)._catalogue
        assert location.file in catalogue.files, location
        assert catalogue.count(location) >= count, location
    return expected


def references(store: Store, queue: QueueStore) -> list[tuple[bool, RecordLocation]]:
    """Of the entries in memory, and of those that unfolding would bring."""
    bodies = queue.bodies
    entries = [*bodies.index]
    for delta in bodies.index.deltas.values():
        found, reports = load_segment(
            store.disk, delta.segment, bodies.live, bodies.missing, bodies.cuts
        )
        assert not reports
        assert sum(entry.live for entry in found) == delta.live, delta
        entries += found
    return [(entry.transient, entry.location) for entry in entries if entry.location is not None]


def flagged(messages: dict[int, Message], flag: str) -> list[int]:
    """The positions of those that have it, in order."""
    return sorted(at for at, message in messages.items() if getattr(message, flag))
