"""A routed session: one producer that publishes to an exchange, on any node.

    a door -> RoutedSession.publish -> the router: queues of each message
                                    -> core: parts for queues, sequences to wait for
                                    -> a `Way` for each queue -> its master, here or elsewhere
    a door <- answered(...) <-------- core <- what the queues answer

The client's order holds in each queue; there is none across queues. Bounds: a session takes
another batch (`wait_room`) while its unanswered messages, bytes and runs are below its own limits,
and its bytes are below its share of what the node has left (`room`). So a queue that takes nothing
stops the sessions that publish to it, and no others.

A queue without a master may take nothing for hours, and a session may publish to a thousand others.
So once a queue is *down* (`ways`), what waits for it has limits of its own, as large, and beyond
them its messages are refused. What was taken goes to the queue in order when it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from ringmq_base.limits import MIB
from ringmq_base.notifier import Notifier
from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.broker.routing.core import (
    Answer,
    AnswerRefused,
    RepeatedSequenceError,
    RoutedPublishes,
    SendPart,
    TargetRun,
)
from ringmq_node.broker.routing.stamp import noted, stamped
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Way
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.resources.flow import Reasons

# Batches that wait behind one whose queue is looked up: what else they name that nobody knows is
# asked for by the same call.
HELD_MAX = 100
HELD_BYTES_MAX = MIB
# Unanswered, of one session; and as much again for queues that are down. A queue remembers as many
# gaps of one producer as there may be runs (`queue.gaps`).
RUNS_MAX = 1000
MESSAGES_MAX = 100_000
BYTES_MAX = 64 * MIB


class SessionClient(Protocol):
    """The door's end of a session. No method may block or raise."""

    def answered(self, answers: Sequence[Answer]) -> None: ...
    def held(self, *, is_held: bool) -> None:
        """Whether any of its queues holds its batches (`block_reasons`). That may be long before
        the session itself takes no more."""
        ...

    def moved(self, reason: Reason) -> None:
        """The session is over; unanswered publishes are unknown."""
        ...


class Routes(Protocol):
    """The router (`broker.topology.router`), as sessions use it."""

    def route(
        self, exchange: str, routing_key: str, headers: Mapping[str, str] | None = None
    ) -> tuple[str, ...]: ...
    def looks_at_headers(self, exchange: str) -> bool: ...


class SessionHost(Protocol):
    """The node, as its sessions use it."""

    @property
    def routes(self) -> Routes: ...
    def begin_way(self, queue: str, session: RoutedSession) -> Way: ...
    def begin_task(
        self, session: RoutedSession, work: Coroutine[Any, Any, None], name: str
    ) -> None:
        """Runs `work` until the session is closed."""
        ...

    def may_be_new(self, exchange: str, routing_key: str) -> bool:
        """Whether the registry may know of a queue for this key that this node hasn't heard of."""
        ...

    async def look_up(self, exchange: str, routing_keys: Collection[str]) -> None:
        """Returns when this node has heard of these, or there are none."""
        ...

    def admits(self, session_bytes: int, *, stuck: bool = False) -> bool:
        """Whether a session with so many unanswered bytes may take another batch; `stuck`: one for
        a queue that is down, with so many bytes for such queues."""
        ...

    def held(self, more_bytes: int, more_stuck: int) -> None:
        """A session has so many more unanswered bytes, or fewer; `more_stuck`: for queues that are
        down."""
        ...

    @property
    def alarms(self) -> frozenset[BlockReason]:
        """Of any node: while there is one, no batch is taken."""
        ...

    async def wait_freed(self) -> None:
        """Returns when sessions hold less, or the alarms have changed."""
        ...

    def new_message_id(self) -> bytes: ...
    def closed(self, session: RoutedSession) -> None: ...


@value
class RoutedBatch:
    """Messages with consecutive sequences and the same attributes.

    `properties`, encoded: none, one for all, or one for each. `headers`: the same of their headers,
    asked for only if the way depends on them.
    """

    first_sequence: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    headers: Callable[[], Sequence[Mapping[str, str]]]
    routing_key: str
    mandatory: bool = False
    transient: bool = False
    ttl_ms: int | None = None
    priority: int = 0
    # Internal names: these don't get it.
    except_queues: frozenset[str] = frozenset()


class RoutedSession:
    """Made by `Routing.open`. `exchange` is an internal name, `shown` what its clients call it."""

    def __init__(
        self,
        host: SessionHost,
        client: SessionClient,
        *,
        exchange: str,
        shown: str,
        producer_id: bytes,
        waits_for_all: bool = False,
    ) -> None:
        """`waits_for_all`: a queue that is down is waited for, as any other."""
        self.producer_id = producer_id
        self.exchange = exchange
        self._shown = shown
        self._host = host
        self._client = client
        self._core = RoutedPublishes()
        self._ways: dict[str, Way] = {}
        # Queues whose masters hold batches of it.
        self._holding: set[str] = set()
        self._changed = Notifier()
        # As the node has heard of them.
        self._held_bytes = self._stuck_bytes = 0
        self._is_closed = False
        self._waits_for_all = waits_for_all
        # Batches behind one whose queue is being looked up, and that one.
        self._held: deque[RoutedBatch] = deque()
        self._looked_up_bytes = 0

    @property
    def messages(self) -> int:
        """Unanswered."""
        return self._core.messages

    # --- for a door ---

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._is_closed

    @property
    def is_full(self) -> bool:
        """Whether its queues haven't answered as much as it may have unanswered."""
        core = self._core
        return core.runs >= 2 * RUNS_MAX or _reaches(
            core.runs - core.stuck_runs,
            core.messages - core.stuck_messages,
            core.size_bytes - core.stuck_bytes,
        )

    @property
    def _is_admitted(self) -> bool:
        return self._host.admits(self._core.size_bytes - self._core.stuck_bytes)

    @property
    def _refuses_down(self) -> bool:
        """Whether nothing more may wait for queues that are down."""
        core = self._core
        return bool(core.down) and (
            _reaches(core.stuck_runs, core.stuck_messages, core.stuck_bytes)
            or not self._host.admits(core.stuck_bytes, stuck=True)
        )

    @property
    def has_room(self) -> bool:
        """Whether `wait_room` would return at once."""
        return self._is_closed or not (
            self._holds_enough or self.is_full or self._host.alarms or not self._is_admitted
        )

    @property
    def _holds_enough(self) -> bool:
        return len(self._held) >= HELD_MAX or self._looked_up_bytes >= HELD_BYTES_MAX

    def block_reasons(self) -> Reasons:
        """Why a batch is held now, here or by a queue's master."""
        found = {*self._host.alarms}
        for way in self._ways.values():
            found.update(way.block_reasons())
        if self.is_full and not found:
            # A queue that has no master, or whose master says nothing yet.
            found.add(BlockReason.RING_FULL)
        if not self._is_admitted:
            found.add(BlockReason.PUBLISH_BUDGET)
        return tuple(sorted(found, key=lambda reason: reason.value))

    async def wait_room(self) -> None:
        """Returns when the session takes another batch."""
        while not self.has_room:
            if self._holds_enough or self.is_full:
                await self._changed.wait()
            else:
                await self._host.wait_freed()

    def publish(self, batch: RoutedBatch) -> None:
        """Raises `BrokerError` if nothing of the batch was taken: the exchange doesn't exist.

        Nor is anything taken by a session that has ended while the batch waited for room: its
        client has heard of that.
        """
        if self._is_closed:
            return
        if self._held:
            self._hold(batch)
            return
        targets = self._targets(batch)
        if self._may_be_new(batch, targets):
            self._hold(batch)
            self._host.begin_task(self, self._look_up(), f"look-up for {self.exchange}")
            return
        self._take(batch, targets)

    def _may_be_new(self, batch: RoutedBatch, targets: Sequence[TargetRun]) -> bool:
        """A queue that was declared through another node, a moment ago: to say that there is none
        would lose its messages."""
        return not any(run.queues for run in targets) and self._host.may_be_new(
            self.exchange, batch.routing_key
        )

    def _hold(self, batch: RoutedBatch) -> None:
        self._held.append(batch)
        self._looked_up_bytes += _size_of(batch.bodies, batch.properties, 0, len(batch.bodies))

    async def _look_up(self) -> None:
        """Goes on with the batches that were held, in order."""
        while self._held:
            unknown = {batch.routing_key for batch in self._held if self._is_unknown(batch)}
            if unknown:
                await self._host.look_up(self.exchange, unknown)
            # Another one that has come meanwhile may have to be looked up.
            self._take_held()
            while self._held and not self._is_unknown(self._held[0]):
                self._take_held()
            self._changed.notify()

    def _is_unknown(self, batch: RoutedBatch) -> bool:
        try:
            return self._may_be_new(batch, self._targets(batch))
        except BrokerError:
            # `_take_held` tells.
            return False

    def _take_held(self) -> None:
        batch = self._held[0]
        try:
            self._take(batch, self._targets(batch))
        except BrokerError as error:
            last = batch.first_sequence + len(batch.bodies) - 1
            self._answer([AnswerRefused((batch.first_sequence, last), error)])
        # Only now: what comes while it is taken goes behind those that are held.
        self._held.popleft()
        self._looked_up_bytes -= _size_of(batch.bodies, batch.properties, 0, len(batch.bodies))

    def _take(self, batch: RoutedBatch, targets: Sequence[TargetRun]) -> None:
        if len(targets) > RUNS_MAX:
            raise bad_request(
                f"the headers of this batch send it {len(targets)} different ways, "
                f"{RUNS_MAX} are most",
                field="bodies",
            )
        refuses_down = self._refuses_down
        try:
            parts, answers = self._core.publish(
                batch.first_sequence, targets, mandatory=batch.mandatory
            )
        except RepeatedSequenceError as error:
            raise bad_request(str(error), field="first_sequence") from error
        if refuses_down:
            for part in parts:
                if part.queue in self._core.down:
                    first = batch.first_sequence
                    answers += self._core.refused(
                        part.queue, first + part.start, first + part.stop - 1, _down(part.queue)
                    )
            parts = [part for part in parts if part.queue not in self._core.down]
        self._account()
        if parts:
            properties = noted(batch.properties, batch.ttl_ms, batch.priority)
            self._send(batch, stamped(properties, self._shown, batch.routing_key), parts)
        self._answer(answers)

    def close(self) -> None:
        """The client hears nothing more; what is on its way may arrive."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ways.clear()
        self._holding.clear()
        self._host.held(-self._held_bytes, -self._stuck_bytes)
        self._held_bytes = self._stuck_bytes = 0
        self._changed.notify()
        self._host.closed(self)

    def end(self, reason: Reason) -> None:
        """The client hears it, and nothing more."""
        if not self._is_closed:
            self.close()
            self._client.moved(reason)

    def drop_idle_ways(self, used_before: float) -> None:
        """Ends the ways that had nothing to do since then, on the loop's clock."""
        for queue, way in [*self._ways.items()]:
            if way.is_idle and way.used_at < used_before:
                del self._ways[queue]
                way.end()

    # --- routing ---

    def _targets(self, batch: RoutedBatch) -> list[TargetRun]:
        bodies, count = batch.bodies, len(batch.bodies)
        if self._host.routes.looks_at_headers(self.exchange):
            found = [self._queues_of(batch, each) for each in batch.headers() or [{}]]
            if len(found) == count:
                return self._runs_of(batch, found)
            queues = found[0]
        else:
            queues = self._queues_of(batch, None)
        return [TargetRun(count, queues, _size_of(bodies, batch.properties, 0, count))]

    def _queues_of(self, batch: RoutedBatch, headers: Mapping[str, str] | None) -> tuple[str, ...]:
        found = self._host.routes.route(self.exchange, batch.routing_key, headers)
        if batch.except_queues:
            return tuple(queue for queue in found if queue not in batch.except_queues)
        return found

    @staticmethod
    def _runs_of(batch: RoutedBatch, found: Sequence[tuple[str, ...]]) -> list[TargetRun]:
        runs: list[TargetRun] = []
        start = 0
        for queues, group in groupby(found):
            stop = start + sum(1 for _ in group)
            size_bytes = _size_of(batch.bodies, batch.properties, start, stop)
            runs.append(TargetRun(stop - start, queues, size_bytes))
            start = stop
        return runs

    def _send(
        self, batch: RoutedBatch, properties: Sequence[bytes], parts: Sequence[SendPart]
    ) -> None:
        made: dict[tuple[int, int], list[str]] = {}
        for part in parts:
            made.setdefault((part.start, part.stop), []).append(part.queue)
        for (start, stop), queues in made.items():
            # The same object for all of them: its bodies are in memory once.
            own = SubBatch(
                batch.first_sequence + start,
                batch.bodies[start:stop],
                properties[start:stop] if len(properties) > 1 else properties,
                _size_of(batch.bodies, properties, start, stop),
                batch.transient,
                batch.ttl_ms,
                self._host.new_message_id() if len(queues) > 1 else b"",
                batch.priority,
            )
            for queue in queues:
                way = self._ways.get(queue)
                if way is None:
                    way = self._ways[queue] = self._host.begin_way(queue, self)
                way.give(own)

    # --- what the queues answer (`WayEnds`) ---

    def confirmed(self, queue: str, sequences: Sequence[Range]) -> None:
        self._answer(self._core.confirmed(queue, sequences))

    def refused(self, queue: str, first: int, last: int, error: BrokerError) -> None:
        self._answer(self._core.refused(queue, first, last, error))

    def down(self, queue: str, *, is_down: bool) -> None:
        if self._waits_for_all:
            return
        others = self._core.down - {queue}
        down = others | {queue} if is_down else others
        if down != self._core.down and not self._is_closed:
            self._core.set_down(down)
            self._account()

    def held(self, queue: str, *, is_held: bool) -> None:
        if self._is_closed:
            return
        was_held = bool(self._holding)
        if is_held:
            self._holding.add(queue)
        else:
            self._holding.discard(queue)
        if was_held != bool(self._holding):
            self._client.held(is_held=is_held)

    def deleted(self, queue: str) -> None:
        self._ways.pop(queue, None)
        self.down(queue, is_down=False)
        self._answer(self._core.deleted(queue))

    def fenced(self, queue: str) -> None:
        self.end(Reason.PRODUCER_FENCED)

    def way_ended(self, way: Way) -> None:
        if self._ways.get(way.queue) is way:
            del self._ways[way.queue]
            self.down(way.queue, is_down=False)

    def _answer(self, answers: Sequence[Answer]) -> None:
        if self._is_closed:
            return
        self._account()
        if answers:
            self._client.answered(answers)

    def _account(self) -> None:
        stuck = self._core.stuck_bytes
        held = self._core.size_bytes - stuck
        if (held, stuck) != (self._held_bytes, self._stuck_bytes):
            self._host.held(held - self._held_bytes, stuck - self._stuck_bytes)
            self._held_bytes, self._stuck_bytes = held, stuck
        self._changed.notify()


def _reaches(runs: int, messages: int, size_bytes: int) -> bool:
    return runs >= RUNS_MAX or messages >= MESSAGES_MAX or size_bytes >= BYTES_MAX


def _down(queue: str) -> BrokerError:
    return BrokerError(
        Reason.QUEUE_FULL,
        f"queue {queue!r} takes nothing, as it has no master, and no more may wait for it",
        queue=queue,
    )


def _size_of(bodies: Sequence[bytes], properties: Sequence[bytes], start: int, stop: int) -> int:
    """Bytes of the bodies from `start` to `stop`, and of their properties."""
    size = sum(map(len, bodies[start:stop]))
    if len(properties) > 1:
        return size + sum(map(len, properties[start:stop]))
    return size + (len(properties[0]) * (stop - start) if properties else 0)
