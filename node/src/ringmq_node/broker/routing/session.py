"""A routed session: one producer that publishes to exchanges of one vhost, on any node.

    a door -> RoutedSession.publish -> the router: queues of each message
                                    -> core: parts for queues, sequences to wait for
                                    -> a `Way` for each queue -> its master, here or elsewhere
    a door <- answered(...) <-------- core <- what the queues answer

The client's order holds in each queue, through whichever exchanges its messages come there; there
is none across queues. So an AMQP channel is one session. The replicated state knows no exchange: a
queue has its producer's sequences, through any exchange. So a client that sends a batch again under
the same sequences may use the same exchange and keys, or others.

Bounds: a session takes another batch (`wait_room`) while its unanswered messages, bytes and runs
are below its own limits, and its bytes are below its share of what the node has left (`room`). So a
queue that takes nothing stops the sessions that publish to it, and no others.

A queue without a master may take nothing for hours, and a session may publish to a thousand others.
So once a queue is *down* (`ways`), the messages that wait for it have limits of their own, as
large, and beyond them its messages are refused. Batches that were taken go to the queue in order
when it is back.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Protocol

from ringmq_base.limits import MIB
from ringmq_base.notifier import Notifier
from ringmq_base.ranges import Range
from ringmq_node.broker.publishing import check_batch
from ringmq_node.broker.routing.batch import (
    HeldRoutedBatches,
    RoutedBatch,
    check_keys,
    size_of,
)
from ringmq_node.broker.routing.core import (
    Answer,
    AnswerRefused,
    RepeatedSequenceError,
    RoutedPublishes,
    SendPart,
    TargetRun,
)
from ringmq_node.broker.routing.finding import RoutingNode, TargetFinder, UnknownNames
from ringmq_node.broker.routing.stamp import noted, stamped
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Way
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.resources.flow import Reasons

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


class _Nobody:
    """The client of sessions that are closed."""

    def answered(self, answers: Sequence[Answer]) -> None: ...
    def held(self, *, is_held: bool) -> None: ...
    def moved(self, reason: Reason) -> None: ...


_NOBODY = _Nobody()


class SessionHost(RoutingNode, Protocol):
    """The node, as its sessions use it."""

    @property
    def settings(self) -> BrokerSettings: ...
    def begin_way(self, queue: str, session: RoutedSession) -> Way: ...
    def begin_task(
        self, session: RoutedSession, work: Coroutine[Any, Any, None], name: str
    ) -> None:
        """Runs `work` until the session is closed."""
        ...

    async def look_up(self, names: Collection[UnknownNames]) -> None:
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
    def closed(self, session: RoutedSession, ending: Collection[Way]) -> None:
        """`ending`: ways that have a last word for their queues."""
        ...


class RoutedSession:
    """Made by `Routing.open`."""

    def __init__(
        self,
        host: SessionHost,
        client: SessionClient,
        *,
        vhost: str,
        producer_id: bytes,
        is_own_id: bool = False,
        is_internal: bool = False,
    ) -> None:
        """`is_own_id`: nobody else knows the producer id, so nothing is repeated under it when a
        queue has answered, or the session is over. `is_internal`: it is the node's own. A queue
        that is down is waited for, as any other, and internal exchanges are open to it."""
        self.producer_id = producer_id
        self._finder = TargetFinder(host, vhost, is_internal=is_internal)
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
        self._is_own_id = is_own_id
        self._is_internal = is_internal
        self._held = HeldRoutedBatches()

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
        """Whether `wait_room` would return at once. The node's own messages are dead letters, which
        have a bound before this one, and whose queues know about alarms (`broker.publishing`)."""
        if self._is_closed or self._held.is_full or self.is_full:
            return self._is_closed
        return self._is_internal or (not self._host.alarms and self._is_admitted)

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
            if self._held.is_full or self.is_full:
                await self._changed.wait()
            else:
                await self._host.wait_freed()

    def publish(self, batch: RoutedBatch) -> None:
        """Raises `BrokerError` if nothing of the batch was taken: it is beyond a limit, there is no
        such exchange, or clients may not publish to it. If the registry has to be asked for the
        exchange, the refusal comes as an answer.

        Nor is anything taken by a session that has ended while the batch waited for room: its
        client has heard of that.
        """
        if self._is_closed:
            return
        if not self._is_internal:
            # A letter has its history, too; the queue's master bounds that.
            settings = self._host.settings
            check_batch(settings, batch.first_sequence, batch.bodies, batch.properties)
        check_keys(batch)
        if self._held:
            self._held.add(batch)
            return
        found = self._finder.find(batch)
        if isinstance(found, UnknownNames):
            self._held.add(batch)
            self._host.begin_task(self, self._look_up(), f"look-up for {batch.exchange!r}")
            return
        self._take(batch, found)

    async def _look_up(self) -> None:
        """Goes on with the batches that were held, in order."""
        held = self._held
        while held:
            unknown = [names for each in held.all() if (names := self._unknown(each)) is not None]
            if unknown:
                await self._host.look_up(unknown)
            # Another one that has come meanwhile may have to be looked up.
            self._take_held()
            while held and self._unknown(held.first) is None:
                self._take_held()
            self._changed.notify()

    def _unknown(self, batch: RoutedBatch) -> UnknownNames | None:
        try:
            found = self._finder.find(batch)
        except BrokerError:
            # `_take_held` tells.
            return None
        return found if isinstance(found, UnknownNames) else None

    def _take_held(self) -> None:
        batch = self._held.first
        try:
            self._take(batch, self._finder.known(batch))
        except BrokerError as error:
            last = batch.first_sequence + len(batch.bodies) - 1
            self._answer([AnswerRefused((batch.first_sequence, last), error)])
        # Only now: batches that come while it is taken go behind those that are held.
        self._held.drop_first()

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
            self._send(batch, stamped(properties, batch.exchange, batch.routing_keys), parts)
        self._answer(answers)

    def close(self, *, has_ended: bool = False) -> None:
        """The client hears nothing more; messages on their way may arrive. `has_ended`: it will
        repeat nothing, so queues may forget its producer id."""
        if self._is_closed:
            return
        self._is_closed = True
        ending: list[Way] = []
        if has_ended or self._is_own_id:
            ending += [way for way in self._ways.values() if way.is_idle]
        for way in ending:
            way.end(ends_producer=True, is_last=True)
        self._ways.clear()
        self._holding.clear()
        self._host.held(-self._held_bytes, -self._stuck_bytes)
        self._held_bytes = self._stuck_bytes = 0
        self._changed.notify()
        self._host.closed(self, ending)
        # It refers to its session, and needn't be left to the garbage collector.
        self._client = _NOBODY

    def end(self, reason: Reason) -> None:
        """The client hears it, and nothing more."""
        if not self._is_closed:
            client = self._client
            self.close()
            client.moved(reason)

    def drop_idle_ways(self, used_before: float) -> None:
        """Ends the ways that had nothing to do since then, on the loop's clock."""
        for queue, way in [*self._ways.items()]:
            if way.is_idle and way.used_at < used_before:
                del self._ways[queue]
                way.end(ends_producer=self._is_own_id)

    # --- sending ---

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
                size_of(batch.bodies, properties, start, stop),
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

    # --- answers of the queues (`WayEnds`) ---

    def confirmed(self, queue: str, sequences: Sequence[Range]) -> None:
        self._answer(self._core.confirmed(queue, sequences))

    def refused(self, queue: str, first: int, last: int, error: BrokerError) -> None:
        self._answer(self._core.refused(queue, first, last, error))

    def down(self, queue: str, *, is_down: bool) -> None:
        if self._is_internal:
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
        # Not those of letters, which have a bound of their own: while their target is down they
        # would hold the publishers of all other queues.
        if not self._is_internal and (held, stuck) != (self._held_bytes, self._stuck_bytes):
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
