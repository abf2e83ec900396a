"""The demo: publish and consume while the master is killed, then judge.

The course of it, with every wait bounded by the deadline of the whole:

1. Nodes start in a directory of their own; a queue is mirrored on all of them.
2. All messages are published with confirms and, at the same time, consumed and acked.
3. When half of them are confirmed, the node that holds the master gets SIGKILL. The
   client repeats, under the same producer id, what it has no confirm for. The last
   quarter waits for the kill, so that a fast machine can't be done before it.
4. When the new master has confirmed its first messages, and a tenth more of all are
   confirmed, the node is started again, and catches up beside the traffic.
5. When all that was confirmed has come out and the queue is empty, and the ring is
   whole again, each replica becomes master in turn (planned promotion) and tells
   its digest: they have to be equal.

What counts as lost, duplicated, ... is defined in `ringmq_node.cli.load.tally`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ringmq
from ringmq import Client, Publisher, QueueInfo, RingMQError
from ringmq_node.cli.cluster.local import ClusterError, LocalCluster
from ringmq_node.cli.demo.lines import Lines
from ringmq_node.cli.errors import first_error
from ringmq_node.cli.load.tally import Tally
from ringmq_node.cli.load.windowed import Load

QUEUE = "demo"
WINDOW = 2000
PREFETCH = 5000
KILL_AT = 0.5
# Further confirms, as a part of all, before the killed node is started again.
RESTART_AFTER = 0.1
PUBLISHED_BEFORE_KILL_MAX = 0.75
STOP_S = 5.0
SHOW_EVERY_S = 0.1
_POLL_S = 0.01
_IDLE_S = 0.1
# For one message, over a failover and whatever else may happen.
_CONFIRM_S = 60.0


class DemoError(Exception):
    """The demo could not come to its end; what is known is in the report."""


class View(Protocol):
    """Where the course of events is shown."""

    def event(self, text: str) -> None: ...

    def show(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    directory: Path
    nodes: int
    count: int
    lines: Lines
    deadline_s: float


@dataclass(slots=True)
class State:
    """What the view shows, and what the report is made of. Times by `time.perf_counter`."""

    count: int
    tally: Tally = field(default_factory=Tally)
    confirmed: int = 0
    # Deliveries, repeats included.
    consumed: int = 0
    # Of each node: starting, running, killed.
    nodes: dict[str, str] = field(default_factory=dict)
    master: str = ""
    started: float = 0.0
    # From the first publish until the last confirm, and until the last ack.
    publish_s: float | None = None
    seconds: float | None = None
    killed: str = ""
    killed_at: float = 0.0
    failover_ms: float | None = None
    resynchronised: bool = False
    resync_ms: float | None = None
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def digests_equal(self) -> bool:
        return len(self.digests) == len(self.nodes) and len(set(self.digests.values())) == 1

    @property
    def broken(self) -> bool:
        return self.tally.broken or len(set(self.digests.values())) > 1

    def report(self) -> dict[str, Any]:
        """What `--json` prints. Unknown is None."""
        tally = self.tally
        seconds = self.seconds
        return {
            "published": tally.published,
            "confirmed": self.confirmed,
            "consumed": len(tally.delivered),
            # Before everything has been consumed, nobody can know.
            "lost": None if seconds is None else tally.lost,
            "duplicated": tally.duplicated,
            "reordered": tally.reordered,
            "redelivered": tally.redelivered,
            "unexpected": tally.unexpected,
            "failover_ms": None if self.failover_ms is None else round(self.failover_ms, 1),
            "rate_per_s": round(self.confirmed / seconds, 1) if seconds else None,
            "seconds": round(seconds, 3) if seconds is not None else None,
            "publish_seconds": round(self.publish_s, 3) if self.publish_s is not None else None,
            "killed": self.killed or None,
            "resynchronised": self.resynchronised,
            "resync_ms": None if self.resync_ms is None else round(self.resync_ms, 1),
            "digests_equal": self.digests_equal,
            "nodes": len(self.nodes),
        }


class Demo:
    """One demo: `run` once. `state` is there from the beginning, and to the end."""

    def __init__(self, settings: Settings, view: View) -> None:
        self._settings = settings
        self._view = view
        self._cluster = LocalCluster.create(settings.directory, nodes=settings.nodes, base_port=0)
        self.state = State(settings.count)
        self.state.nodes = {member.node: "starting" for member in self._cluster.members}
        self._load = Load(
            self.state.tally,
            settings.lines.bodies,
            settings.count,
            gate=self._wait_for_kill,
            on_confirm=self._on_confirm,
        )
        self._killed = asyncio.Event()
        self._published = asyncio.Event()
        self._progress = asyncio.Event()
        # While the failover is being measured.
        self._last_confirm_at = 0.0
        self._longest_gap_s = 0.0
        self._restarted_at = 0.0
        self._doing = "starting the nodes"

    async def run(self) -> None:
        """Raises `DemoError` if it can't be carried through. No process is left."""
        showing = asyncio.create_task(self._show())
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                await self._run()
        except TimeoutError:
            raise DemoError(
                f"not finished after {self._settings.deadline_s:g} s, while {self._doing}"
            ) from None
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, RingMQError | ClusterError):
                raise DemoError(f"while {self._doing}: {error}") from group
            raise
        except (RingMQError, ClusterError) as error:
            raise DemoError(f"while {self._doing}: {error}") from error
        finally:
            showing.cancel()
            self._cluster.stop(timeout_s=STOP_S)

    async def _show(self) -> None:
        while True:
            self._view.show(self.state)
            await asyncio.sleep(SHOW_EVERY_S)

    async def _run(self) -> None:
        cluster, state = self._cluster, self.state
        for node in state.nodes:
            cluster.start(node)
        await cluster.wait_ready(timeout_s=self._settings.deadline_s)
        state.nodes.update(dict.fromkeys(state.nodes, "running"))
        self._view.event(f"{len(state.nodes)} nodes serve at {cluster.seeds}")
        async with ringmq.connect(cluster.seeds, deadline_s=_CONFIRM_S) as client:
            self._doing = "making the queue"
            await client.declare_queue(QUEUE, replicas=len(state.nodes))
            info = await self._wait_whole(client)
            self._view.event(f"queue {QUEUE!r} is mirrored on all of them, master {info.master}")
            self._doing = "publishing and consuming"
            async with client.publisher(QUEUE, window_messages=WINDOW) as publisher:
                state.started = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._publish(publisher))
                    group.create_task(self._consume(client))
                    group.create_task(self._kill_and_restart(client))
            self._doing = "waiting for the ring to be whole again"
            await self._wait_whole(client)
            state.resynchronised = True
            state.resync_ms = (time.perf_counter() - self._restarted_at) * 1000
            self._view.event(
                f"{state.killed} is back in the ring, all {len(state.nodes)} are synchronised"
            )
            self._doing = "comparing digests"
            await self._compare_digests(client)

    # --- publishing ---

    async def _publish(self, publisher: Publisher) -> None:
        state = self.state
        await self._load.publish(publisher, window=WINDOW)
        if self._load.failure is not None:
            raise self._load.failure
        state.publish_s = time.perf_counter() - state.started
        self._published.set()
        self._progress.set()
        self._view.event(f"all {state.confirmed} messages are confirmed")

    async def _wait_for_kill(self, published: int) -> None:
        if published >= self.state.count * PUBLISHED_BEFORE_KILL_MAX:
            await self._killed.wait()

    def _on_confirm(self, messages: int, handed_over_at: float) -> None:
        state = self.state
        state.confirmed += messages
        now = time.perf_counter()
        if self._killed.is_set() and state.failover_ms is None:
            # The dead master's last confirms may still come in; the gap is after them.
            gap_s = now - max(self._last_confirm_at, state.killed_at)
            self._longest_gap_s = max(self._longest_gap_s, gap_s)
            if handed_over_at > state.killed_at:
                # Nobody but the new master can have confirmed this one.
                state.failover_ms = self._longest_gap_s * 1000
                self._view.event(
                    f"the new master confirms; for {state.failover_ms:.0f} ms nobody did"
                )
        self._last_confirm_at = now
        self._progress.set()

    # --- consuming ---

    async def _consume(self, client: Client) -> None:
        """Until everything is published, all that is confirmed has come, and nothing is left."""
        state, lines = self.state, self._settings.lines
        last_at = state.started
        async with client.consumer(QUEUE, prefetch=PREFETCH) as consumer:
            while True:
                batch = await consumer.next_batch(timeout_s=_IDLE_S)
                if batch is not None:
                    last_at = time.perf_counter()
                    for part in batch.parts:
                        state.tally.deliver(
                            lines.indexes(part.bodies), part.first, redelivered=part.redelivered
                        )
                    state.consumed += len(batch)
                    await consumer.ack(batch)
                elif self._published.is_set() and state.tally.complete:
                    # A duplicate would be behind the last message: look before leaving.
                    info = await client.queue(QUEUE)
                    if info.messages_ready == info.messages_unacknowledged == 0:
                        break
        assert state.publish_s is not None
        state.seconds = max(last_at - state.started, state.publish_s)
        self._view.event("all of them are consumed, and the queue is empty")

    # --- the murder ---

    async def _kill_and_restart(self, client: Client) -> None:
        state = self.state
        await self._until(lambda: state.confirmed >= state.count * KILL_AT)
        victim = (await client.locate_queue(QUEUE)).node
        state.killed = victim
        state.killed_at = time.perf_counter()
        self._cluster.kill(victim)
        self._killed.set()
        state.nodes[victim] = "killed"
        self._view.event(f"{victim}, the master, is killed; {state.confirmed} were confirmed")
        await self._until(lambda: state.failover_ms is not None or self._published.is_set())
        again_at = state.confirmed + state.count * RESTART_AFTER
        await self._until(lambda: state.confirmed >= again_at or self._published.is_set())
        self._restarted_at = time.perf_counter()
        self._cluster.start(victim)
        state.nodes[victim] = "running"
        self._view.event(f"{victim} is started again")

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Returns when something was confirmed, or all is published, that makes it true."""
        while not condition():
            await self._progress.wait()
            self._progress.clear()

    # --- the ring ---

    async def _wait_whole(self, client: Client) -> QueueInfo:
        """Returns when the ring has all nodes, synchronised."""
        nodes = self.state.nodes
        while True:
            for node in nodes:
                if self._cluster.process(node) is None:
                    raise ClusterError(f"{node} has ended: {self._cluster.last_words(node)}")
            info = await client.queue(QUEUE)
            self.state.master = info.master
            if {each.node for each in info.ring if each.synchronised} == set(nodes):
                return info
            await asyncio.sleep(_POLL_S)

    async def _compare_digests(self, client: Client) -> None:
        """A digest is the master's own: so each of them becomes master."""
        state = self.state
        info = await client.queue(QUEUE)
        state.digests[info.master] = info.digest
        for replica in info.ring[1:]:
            await client.promote_mirror(QUEUE, replica.node)
            info = await client.queue(QUEUE)
            state.digests[info.master] = info.digest
        state.master = info.master
        verdict = "equal" if state.digests_equal else "not equal"
        self._view.event(f"the digests of {len(state.digests)} replicas are {verdict}")
