"""The demo: publish and consume while the master is killed, then judge.

One deadline bounds every wait. The course:

1. Nodes start in a directory of their own; a queue is mirrored on all of them.
2. All messages are published with confirms and, at the same time, consumed and acked.
3. When half of the messages are confirmed, the node that holds the master gets SIGKILL.
   The client repeats its unconfirmed messages under the same producer id. The last quarter
   of the messages waits for the kill, so that a fast machine can't be done before it.
4. When the new master has confirmed its first messages, and a further tenth of all messages
   is confirmed, the node is started again, and catches up beside the traffic.
5. When every confirmed message has come out, the queue is empty and the ring is whole again,
   each replica becomes master in turn (planned promotion) and tells its digest. All digests
   have to be equal.
6. The nodes are stopped, and their logs read: an error or a traceback in one of them fails
   the demo even if every message arrived.

`ringmq_node.cli.load.tally` defines which messages count as lost, duplicated and so on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ringmq
from ringmq import Client, Publisher, QueueInfo, RingMQError
from ringmq_base.logs import LogFault
from ringmq_node.cli.cluster.local import LocalCluster, LocalClusterError
from ringmq_node.cli.demo.lines import Lines
from ringmq_node.cli.demo.state import DemoState, NodePhase
from ringmq_node.cli.errors import first_error
from ringmq_node.cli.load.drained import is_drained
from ringmq_node.cli.load.windowed import WindowedLoad

QUEUE = "demo"
WINDOW = 2000
PREFETCH = 5000
KILL_AT = 0.5
# Confirms after the failover, as a part of all messages, before the killed node is started again.
RESTART_AFTER = 0.1
PUBLISHED_BEFORE_KILL_MAX = 0.75
STOP_S = 5.0
SHOW_EVERY_S = 0.1
_POLL_S = 0.01
_IDLE_S = 0.1
# The client's deadline for one message: ample for a failover.
_CONFIRM_S = 60.0


class DemoError(Exception):
    """The demo could not come to its end; the report has the facts known so far."""


class Screen(Protocol):
    """Where the demo shows its events and figures."""

    def event(self, text: str) -> None: ...

    def show(self, state: DemoState) -> None: ...


@dataclass(frozen=True, slots=True)
class DemoSettings:
    directory: Path
    nodes: int
    count: int
    lines: Lines
    deadline_s: float


class Demo:
    """One demo: await `run` once. `state` can be read at any time, also after a failure."""

    def __init__(self, settings: DemoSettings, screen: Screen) -> None:
        self._settings = settings
        self._screen = screen
        self._cluster = LocalCluster.create(settings.directory, nodes=settings.nodes, base_port=0)
        self.state = DemoState(settings.count)
        self.state.nodes = {each.node: NodePhase.STARTING for each in self._cluster.nodes}
        self._load = WindowedLoad(
            self.state.tally,
            settings.lines.bodies,
            settings.count,
            gate=self._wait_for_kill,
            on_confirm=self._on_confirm,
        )
        self._killed = asyncio.Event()
        self._published = asyncio.Event()
        self._progress = asyncio.Event()
        # Used from the kill until `failover_ms` is known.
        self._last_confirm_at = 0.0
        self._longest_gap_s = 0.0
        self._restarted_at = 0.0
        self._doing = "starting the nodes"

    async def run(self) -> None:
        """Raises `DemoError` if the demo can't come to its end. No process is left."""
        showing = asyncio.create_task(self._show())
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                await self._run()
        except TimeoutError:
            raise DemoError(
                f"not finished after {self._settings.deadline_s:g} s (--deadline), "
                f"while {self._doing}"
            ) from None
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, RingMQError | LocalClusterError):
                raise DemoError(f"while {self._doing}: {error}") from group
            raise
        except (RingMQError, LocalClusterError) as error:
            raise DemoError(f"while {self._doing}: {error}") from error
        finally:
            showing.cancel()
            self._cluster.stop(timeout_s=STOP_S)

    def log_faults(self) -> list[LogFault]:
        """The errors and tracebacks in the nodes' logs. No error is expected in a demo."""
        return self._cluster.log_faults()

    async def _show(self) -> None:
        while True:
            self._screen.show(self.state)
            await asyncio.sleep(SHOW_EVERY_S)

    async def _run(self) -> None:
        cluster, state = self._cluster, self.state
        for node in state.nodes:
            cluster.start(node)
        await cluster.wait_ready(timeout_s=self._settings.deadline_s)
        state.nodes.update(dict.fromkeys(state.nodes, NodePhase.RUNNING))
        self._screen.event(f"{len(state.nodes)} nodes serve at {cluster.seeds}")
        async with ringmq.connect(cluster.seeds, deadline_s=_CONFIRM_S) as client:
            self._doing = "making the queue"
            await client.declare_queue(QUEUE, replicas=len(state.nodes))
            info = await self._wait_whole(client)
            self._screen.event(f"queue {QUEUE!r} is mirrored on all of them, master {info.master}")
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
            self._screen.event(
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
        self._screen.event(f"all {state.confirmed} messages are confirmed")

    async def _wait_for_kill(self, published: int) -> None:
        if published >= self.state.count * PUBLISHED_BEFORE_KILL_MAX:
            await self._killed.wait()

    def _on_confirm(self, messages: int, handed_over_at: float) -> None:
        state = self.state
        state.confirmed += messages
        now = time.perf_counter()
        if self._killed.is_set() and state.failover_ms is None:
            # Confirms that the dead master sent may still come in. They aren't the new
            # master's: the gap is measured from the last of them.
            gap_s = now - max(self._last_confirm_at, state.killed_at)
            self._longest_gap_s = max(self._longest_gap_s, gap_s)
            if handed_over_at > state.killed_at:
                # Handed over after the kill: only the new master can have confirmed this chunk.
                state.failover_ms = self._longest_gap_s * 1000
                self._screen.event(
                    f"the new master confirms; for {state.failover_ms:.0f} ms nobody did"
                )
        self._last_confirm_at = now
        self._progress.set()

    # --- consuming ---

    async def _consume(self, client: Client) -> None:
        """Ends when all is published, every confirmed message has come, and the queue is empty."""
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
                elif (
                    self._published.is_set()
                    and state.tally.complete
                    and await is_drained(client, QUEUE)
                ):
                    break
        assert state.publish_s is not None
        state.seconds = max(last_at - state.started, state.publish_s)
        self._screen.event("all of them are consumed, and the queue is empty")

    # --- the murder ---

    async def _kill_and_restart(self, client: Client) -> None:
        state = self.state
        await self._until(lambda: state.confirmed >= state.count * KILL_AT)
        victim = (await client.locate_queue(QUEUE)).node
        state.killed = victim
        state.killed_at = time.perf_counter()
        self._cluster.kill(victim)
        self._killed.set()
        state.nodes[victim] = NodePhase.KILLED
        self._screen.event(f"{victim}, the master, is killed; {state.confirmed} were confirmed")
        await self._until(lambda: state.failover_ms is not None or self._published.is_set())
        again_at = state.confirmed + state.count * RESTART_AFTER
        await self._until(lambda: state.confirmed >= again_at or self._published.is_set())
        self._restarted_at = time.perf_counter()
        self._cluster.start(victim)
        state.nodes[victim] = NodePhase.RUNNING
        self._screen.event(f"{victim} is started again")

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for `condition`, which is asked after each confirm and at the end of publishing."""
        while not condition():
            await self._progress.wait()
            self._progress.clear()

    # --- the ring ---

    async def _wait_whole(self, client: Client) -> QueueInfo:
        """Returns when the ring has all nodes, and all of them are synchronised."""
        nodes = self.state.nodes
        while True:
            for node in nodes:
                if self._cluster.process(node) is None:
                    raise LocalClusterError(f"{node} has ended: {self._cluster.last_words(node)}")
            info = await client.queue(QUEUE)
            self.state.master = info.master
            if {each.node for each in info.ring if each.synchronised} == set(nodes):
                return info
            await asyncio.sleep(_POLL_S)

    async def _compare_digests(self, client: Client) -> None:
        """Promotes each replica in turn: only a master tells its digest."""
        state = self.state
        info = await client.queue(QUEUE)
        state.digests[info.master] = info.digest
        for replica in info.ring[1:]:
            await client.promote_mirror(QUEUE, replica.node)
            info = await client.queue(QUEUE)
            state.digests[info.master] = info.digest
        state.master = info.master
        verdict = "equal" if state.digests_equal else "not equal"
        self._screen.event(f"the digests of {len(state.digests)} replicas are {verdict}")
