"""The dead letters of one mastership, on their way to the queue's dead-letter exchange.

The core says which letters to send (`SendLetters`), and this shell publishes them: with the
exchange and the key that the queue's rules have at that moment, and with one more death in each
message's history. It tells the core what became of them, and decides only when to try again.

Letters with the same routing keys, a *lane*, leave one batch after another; lanes don't wait for
each other. Where the queue's rules give the letters a key, that is the key of all, and they leave
in order; else those of two keys may overtake each other on their way to one queue. A target that is
down or full holds its lane, and at last the core's window: the queue's other messages, and the
letters of other queues, go on.

Each queue is one producer, whose sequences are the letters' numbers: so the next master, which
sends again what it finds doomed, has a letter enqueued once. Where an operator has accepted a loss,
numbers may be given again: from then on the producer is another one.

A change of the rules counts for letters that are under way, too (`rules_changed`).

A letter without a target is dropped, as RabbitMQ does it. A node may know of an exchange or a
binding a moment later than the client that has made it: the first letters that find none wait. One
that finds queues, and would close a cycle in each of them, doesn't: it is dropped at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto

from ringmq_base.limits import KIB
from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.model.deaths import ClosesCycleError, DeathReason
from ringmq_node.model.envelope import dead_envelope
from ringmq_node.model.fields import FieldValue
from ringmq_node.model.names import join_name, shown, split_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue.block import Block
from ringmq_node.queue.departures import Departures
from ringmq_node.queue.effects import Effect, Letters
from ringmq_node.replica.master_replica import MasterReplica

logger = logging.getLogger(__name__)

# Of one batch; one larger letter always passes.
BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 512 * KIB
# Of the producer ids under which letters are published. No client may use one.
PRODUCER_PREFIX = b"letters-"
# Between two tries, while a target is down, full or moves.
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 2.0
# How long letters wait for an exchange or a binding that isn't known here; of so many targets it is
# remembered that they did. Each message may have a key of its own.
UNKNOWN_S = 2.0
UNKNOWN_MAX = 1000
# And before operators are told that they wait.
PATIENCE_S = 10.0
# Letters that wait, or are dropped for one reason, are logged no more often than this.
LOG_EVERY_S = 60.0


class DropReason(Enum):
    """Why letters are dropped; each is counted and logged by itself."""

    NO_RULE = auto()
    NO_TARGET = auto()
    CYCLE = auto()


def is_of_letters(producer_id: bytes) -> bool:
    """Whether a node publishes dead letters under this id."""
    return producer_id.startswith(PRODUCER_PREFIX)


@value
class Letter:
    number: int
    position: int
    body: bytes
    properties: bytes
    reason: DeathReason
    transient: bool

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return len(self.body) + len(self.properties)


@value
class LetterWay:
    """What letters have to have in common to leave as one batch."""

    routing_keys: tuple[str, ...]
    headers: tuple[tuple[str, FieldValue], ...]
    except_queues: frozenset[str]
    transient: bool
    priority: int


class Outbox:
    """Of one mastership."""

    def __init__(
        self,
        replica: MasterReplica,
        departures: Departures,
        carry_out: Callable[[list[Effect]], None],
        rules: Callable[[], QueueRules],
    ) -> None:
        """`carry_out`: of the core's effects. `rules`: those of the moment."""
        self._desk = replica.letter_desk
        self._spawn = replica.spawn
        self._departures = departures
        self._carry_out = carry_out
        self._rules = rules
        self._target = _target_of(rules())
        self._name = replica.record.name
        self._vhost, self._shown_name = split_name(self._name)
        losses = replica.view.losses
        seed = f"dead letters of {replica.record.id} since {losses[-1].epoch if losses else 0}"
        self.producer_id = PRODUCER_PREFIX + hashlib.blake2b(seed.encode(), digest_size=16).digest()
        # By the keys with which they leave.
        self._lanes: dict[tuple[str, ...], deque[tuple[LetterWay, Letter]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # As the desk has heard of them.
        self._held_bytes = 0
        self._ended = False
        # Exchanges and keys without a target, for which letters have waited in vain.
        self._unknown: set[tuple[str, tuple[str, ...]]] = set()
        self._dropped = Counter[DropReason]()
        # By reason; None: of letters that wait.
        self._logged_at: dict[DropReason | None, float] = {}

    def send(self, letters: Sequence[Letters]) -> None:
        """Takes these behind all that were sent before."""
        at_ms = self._desk.now_ms()
        for each in letters:
            block = each.run.block
            properties = block.properties() or [b""]
            if len(properties) == 1:
                properties *= block.count
            for at, (body, old) in enumerate(zip(block.bodies(), properties, strict=True)):
                found = dead_envelope(
                    old,
                    each.reason,
                    self._shown_name,
                    at_ms=at_ms,
                    bytes_max=self._desk.properties_bytes_max,
                    codecs=self._desk.publisher.codecs,
                )
                names = (join_name(self._vhost, queue) for queue in found.except_queues)
                transient = each.run.transient
                way = LetterWay(
                    found.routing_keys, found.headers, frozenset(names), transient, found.priority
                )
                number, position = each.first_letter + at, each.run.first_position + at
                letter = Letter(number, position, body, found.properties, each.reason, transient)
                self._put(way, letter)

    def _put(self, way: LetterWay, letter: Letter) -> None:
        self._hold(letter.size_bytes)
        keys = _keys_of(way, self._rules())
        lane = self._lanes.get(keys)
        if lane is not None:
            lane.append((way, letter))
            return
        self._lanes[keys] = deque([(way, letter)])
        task = self._spawn(self._run(keys), f"letters of {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def rules_changed(self) -> None:
        """Letters under way go to where the rules lead now. Those of the exchange before might wait
        for ever, for a target that is down, and hold all behind them. It may get some all the
        same."""
        target = _target_of(self._rules())
        if target != self._target:
            self._target = target
            # Their lanes hear of an error, and send them again.
            self._desk.publisher.close(self.producer_id)

    def end(self) -> None:
        """The mastership has ended: what is on its way is the next master's."""
        self._ended = True
        for task in [*self._tasks]:
            task.cancel()
        self._lanes.clear()
        self._hold(-self._held_bytes)
        self._desk.publisher.close(self.producer_id)
        # The mastership's: no cycle, which would stay in memory when the queue is gone.
        del self._carry_out, self._rules, self._spawn

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._desk.memory.hold(size_bytes)

    # --- a lane ---

    async def _run(self, keys: tuple[str, ...]) -> None:
        lane = self._lanes[keys]
        while lane and not self._ended:
            front = _front(lane, self._rules())
            ways = {way.routing_keys for way, _ in front}
            if not await self._publish(front[0][0], [letter for _, letter in front], ways):
                lane.extendleft(reversed(front))
        if not self._ended:
            del self._lanes[keys]

    async def _publish(
        self, way: LetterWay, letters: Sequence[Letter], ways: set[tuple[str, ...]]
    ) -> bool:
        """Returns False if they can't leave as one batch any more: each has its own of these
        routing keys since the rules have changed."""
        block = Block.of([each.body for each in letters], [each.properties for each in letters])
        pause_s = RETRY_FIRST_S
        waited_s = 0.0
        while True:
            rules = self._rules()
            exchange = rules.dead_letter_exchange
            if exchange is None:
                why = "the queue has no dead-letter exchange any more"
                self._drop(letters, DropReason.NO_RULE, why)
                return True
            keys = _keys_of(way, rules)
            if len({_keys_of(replace(way, routing_keys=own), rules) for own in ways}) > 1:
                return False
            target = (exchange, keys)
            missing = ""
            try:
                routed = await self._desk.publisher.publish(
                    self._vhost,
                    exchange,
                    keys,
                    block,
                    self.producer_id,
                    letters[0].number,
                    transient=way.transient,
                    priority=way.priority,
                    headers=dict(way.headers),
                    except_queues=way.except_queues,
                )
                if routed:
                    self._unknown.discard(target)
                    self._gone(letters, arrived=True)
                    return True
                shown_keys = ", ".join(map(repr, keys))
                missing = f"no queue gets letters with key {shown_keys} from exchange {exchange!r}"
            except ClosesCycleError as error:
                self._drop(letters, DropReason.CYCLE, str(error))
                return True
            except BrokerError as error:
                if error.reason is Reason.SEQUENCE_FORGOTTEN:
                    positions = self._let_go(letters)
                    self._carry_out(self._departures.letters_forgotten(positions))
                    return True
                if error.reason is Reason.EXCHANGE_NOT_FOUND:
                    missing = f"there is no exchange {exchange!r}"
                if waited_s >= PATIENCE_S and not missing:
                    self._warn(
                        None,
                        "%d dead letters wait, as their target takes none: %s",
                        len(letters),
                        error,
                    )
            if missing and (target in self._unknown or waited_s >= UNKNOWN_S):
                if len(self._unknown) < UNKNOWN_MAX:
                    self._unknown.add(target)
                self._drop(letters, DropReason.NO_TARGET, missing)
                return True
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, RETRY_LAST_S)

    def _let_go(self, letters: Sequence[Letter]) -> list[Range]:
        """Before the core hears of them: it looks how much room there is. Their positions."""
        self._hold(-sum(each.size_bytes for each in letters))
        return [(each.position, each.position) for each in letters]

    def _gone(self, letters: Sequence[Letter], *, arrived: bool) -> None:
        positions = self._let_go(letters)
        self._carry_out(self._departures.letters_gone(positions, arrived=arrived))

    def _drop(self, letters: Sequence[Letter], reason: DropReason, why: str) -> None:
        self._dropped[reason] += len(letters)
        count = self._dropped[reason]
        self._warn(
            reason, "%d dead letters dropped since this node is its master, as %s", count, why
        )
        self._gone(letters, arrived=False)

    def _warn(self, about: DropReason | None, what: str, *facts: object) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(about, -math.inf) >= LOG_EVERY_S:
            self._logged_at[about] = now
            logger.warning("queue %s: " + what, shown(self._name), *facts)


def _target_of(rules: QueueRules) -> tuple[str | None, str | None]:
    return rules.dead_letter_exchange, rules.dead_letter_routing_key


def _keys_of(way: LetterWay, rules: QueueRules) -> tuple[str, ...]:
    """With which letters of this way leave."""
    key = rules.dead_letter_routing_key
    return way.routing_keys if key is None else (key,)


def _front(
    lane: deque[tuple[LetterWay, Letter]], rules: QueueRules
) -> list[tuple[LetterWay, Letter]]:
    """Takes the first letters that can leave as one batch: with consecutive numbers, as these are
    the sequences of the batch."""
    batch = [lane.popleft()]
    first, letter = batch[0]
    number, size = letter.number, len(letter.body)
    keys = _keys_of(first, rules)
    while lane and len(batch) < BATCH_MESSAGES_MAX:
        way, letter = lane[0]
        size += len(letter.body)
        number += 1
        fits = letter.number == number and size <= BATCH_BYTES_MAX
        is_alike = way == first or (
            _keys_of(way, rules) == keys and replace(way, routing_keys=first.routing_keys) == first
        )
        if not fits or not is_alike:
            break
        batch.append(lane.popleft())
    return batch
