"""The needs of an AMQP 0-9-1 door, which the broker meets: reply codes and publishing channels.

There is no such door yet. Here are the table that it will have, complete by test, and a channel
that only translates: it numbers publishes, and writes down the frames that it would send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

import pytest
from loops import run
from node.tests.broker.test_broker import Session
from node.tests.nodes import lone_node
from waiting import until

from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.broker.routing.batch import RoutedBatch
from ringmq_node.broker.routing.core import Answer, AnswerConfirmed, AnswerRefused, AnswerReturned
from ringmq_node.broker.routing.session import RoutedSession
from ringmq_node.broker.topology.arguments import ExchangeArguments, kind_of
from ringmq_node.broker.topology.service import BindingAsked
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.model.topology import ExchangeKind
from ringmq_node.queue.consumers import ConsumerTerms

CALLER = Caller(5.0)

# --- reply codes ---


class Ends(Enum):
    """The scope that a refusal ends."""

    CHANNEL = auto()
    CONNECTION = auto()
    # Nothing: it is the answer to one publish.
    MESSAGE = auto()


class Reply(NamedTuple):
    code: int
    ends: Ends


ACCESS_REFUSED = Reply(403, Ends.CHANNEL)
NOT_FOUND = Reply(404, Ends.CHANNEL)
RESOURCE_LOCKED = Reply(405, Ends.CHANNEL)
PRECONDITION_FAILED = Reply(406, Ends.CHANNEL)
CONNECTION_FORCED = Reply(320, Ends.CONNECTION)
NOT_ALLOWED = Reply(530, Ends.CONNECTION)
NOT_IMPLEMENTED = Reply(540, Ends.CONNECTION)
# Calls that may succeed later are among them: the door asks again until its deadline. oslo waits
# 2 s after a 541.
INTERNAL_ERROR = Reply(541, Ends.CONNECTION)
NO_ROUTE = Reply(312, Ends.MESSAGE)
# basic.nack has no code.
NACK = Reply(0, Ends.MESSAGE)

REPLIES: dict[Reason, Reply] = {
    Reason.QUEUE_NOT_FOUND: NOT_FOUND,
    Reason.QUEUE_EXISTS: PRECONDITION_FAILED,
    Reason.BAD_REQUEST: PRECONDITION_FAILED,
    Reason.MESSAGE_TOO_LARGE: PRECONDITION_FAILED,
    Reason.UNKNOWN_DELIVERY: PRECONDITION_FAILED,
    Reason.QUEUE_NOT_EMPTY: PRECONDITION_FAILED,
    Reason.QUEUE_IN_USE: PRECONDITION_FAILED,
    Reason.EXCHANGE_NOT_FOUND: NOT_FOUND,
    Reason.EXCHANGE_EXISTS: PRECONDITION_FAILED,
    Reason.EXCHANGE_IN_USE: PRECONDITION_FAILED,
    Reason.VHOST_NOT_FOUND: NOT_ALLOWED,
    Reason.ACCESS_REFUSED: ACCESS_REFUSED,
    Reason.FORBIDDEN_BY_POLICY: PRECONDITION_FAILED,
    Reason.QUEUE_LOCKED: RESOURCE_LOCKED,
    Reason.EXCLUSIVE_CONSUMER: ACCESS_REFUSED,
    Reason.CONSUMER_TIMEOUT: PRECONDITION_FAILED,
    Reason.LIMIT_EXCEEDED: PRECONDITION_FAILED,
    Reason.NOT_SUPPORTED: NOT_IMPLEMENTED,
    # Of a publish.
    Reason.QUEUE_FULL: NACK,
    Reason.UNROUTABLE: NO_ROUTE,
    Reason.OUTCOME_UNKNOWN: NACK,
    # The node's end, or the end of its life in the cluster: clients connect to another one.
    Reason.DRAINING: CONNECTION_FORCED,
    Reason.STORE_FAILED: CONNECTION_FORCED,
    # Asked again before it is told.
    Reason.NO_MASTER: INTERNAL_ERROR,
    Reason.NOT_MASTER: INTERNAL_ERROR,
    Reason.TOO_FEW_SYNCHRONISED: INTERNAL_ERROR,
    Reason.REGISTRY_UNAVAILABLE: INTERNAL_ERROR,
    Reason.TIMEOUT: INTERNAL_ERROR,
    Reason.REPAIRING: INTERNAL_ERROR,
    Reason.BUSY: INTERNAL_ERROR,
    Reason.QUARANTINED: INTERNAL_ERROR,
    Reason.DISK_FULL: INTERNAL_ERROR,
    Reason.INTERNAL: INTERNAL_ERROR,
    # A channel's producer id is the session's own, and its sequences the channel's: a bug.
    Reason.SEQUENCE_GAP: INTERNAL_ERROR,
    Reason.SEQUENCE_FORGOTTEN: INTERNAL_ERROR,
    Reason.UNKNOWN_PRODUCER: INTERNAL_ERROR,
    Reason.PRODUCER_FENCED: INTERNAL_ERROR,
    # A consumer without an identity isn't replaced.
    Reason.CONSUMER_REPLACED: INTERNAL_ERROR,
    # No method of AMQP asks for these: operators, policies, vhosts, positions and leases.
    Reason.NOT_SYNCHRONISED: INTERNAL_ERROR,
    Reason.NOT_A_MEMBER: INTERNAL_ERROR,
    Reason.MESSAGES_MAY_BE_LOST: INTERNAL_ERROR,
    Reason.POLICY_NOT_FOUND: INTERNAL_ERROR,
    Reason.NODE_NOT_FOUND: INTERNAL_ERROR,
    Reason.NODE_IS_UP: INTERNAL_ERROR,
    Reason.VHOST_IN_USE: INTERNAL_ERROR,
    Reason.POSITIONS_MOVED: INTERNAL_ERROR,
    Reason.POSITIONS_GONE: INTERNAL_ERROR,
    Reason.POSITIONS_HELD: INTERNAL_ERROR,
    Reason.POSITIONS_UNSAFE: INTERNAL_ERROR,
    Reason.LEASE_HELD: INTERNAL_ERROR,
    Reason.LEASE_LOST: INTERNAL_ERROR,
}
# Where one reason has two codes, the subject of the refusal decides: a piece of its metadata.
BY_METADATA: dict[tuple[Reason, str, str], Reply] = {
    (Reason.QUEUE_EXISTS, "field", "exclusive"): RESOURCE_LOCKED,
    (Reason.LIMIT_EXCEEDED, "limit", "connections"): NOT_ALLOWED,
}
# Codes of AMQP's specification that RabbitMQ sends, and why no reason of a broker stands for them.
OF_THE_DOOR = {
    311: "content too large: not used, 406 is",
    313: "no consumers: not used, `immediate` is refused with 540",
    402: "invalid path: not used",
    501: "frames",
    502: "fields and tables",
    503: "methods that there aren't",
    504: "channels that aren't open, or are already",
    505: "the order of frames",
    506: "its own memory",
}
# Section 4 of the notes on RabbitMQ's AMQP; 312 is that of basic.return.
CODES = {311, 312, 313, 320, 402, 403, 404, 405, 406, 501, 502, 503, 504, 505, 506, 530, 540, 541}


def reply_to(error: BrokerError) -> Reply:
    for (reason, key, what), reply in BY_METADATA.items():
        if error.reason is reason and error.metadata.get(key) == what:
            return reply
    return REPLIES[error.reason]


def test_every_reason_has_a_reply_and_every_code_a_reason_or_is_the_doors() -> None:
    assert set(REPLIES) == set(Reason)
    brokers = {reply.code for reply in (*REPLIES.values(), *BY_METADATA.values())} - {0}
    assert brokers.isdisjoint(OF_THE_DOOR)
    assert brokers | {*OF_THE_DOOR} == CODES
    # A call that may be repeated is never the fault of the client's channel.
    for reason, reply in REPLIES.items():
        if BrokerError(reason, "").retryable:
            assert reply.ends is not Ends.CHANNEL, reason


# --- a node ---


def with_broker(folder: Path, work: Callable[[Broker], Awaitable[None]]) -> None:
    async def main() -> None:
        node = await lone_node(folder, message_bytes_max=10_000)
        await node.start()
        try:
            await work(node.broker)
        finally:
            await node.stop()

    run(main())


async def declare(broker: Broker, *queues: str, rules: QueueRules | None = None) -> None:
    for queue in queues:
        await broker.declare(queue, QueueArguments(rules=rules or QueueRules()), CALLER)


async def bind(broker: Broker, source: str, queue: str, key: str = "") -> None:
    await broker.topology.bind(BindingAsked("", source, queue, routing_key=key), CALLER)


async def exchange(
    broker: Broker, name: str, kind: ExchangeKind = ExchangeKind.FANOUT, *, internal: bool = False
) -> None:
    arguments = ExchangeArguments(kind, internal=internal)
    await broker.topology.declare_exchange("", name, arguments, 5.0)


@dataclass(frozen=True)
class Told:
    """A message as its consumer would be told of it."""

    body: bytes
    exchange: str
    keys: tuple[str, ...]


async def messages_in(broker: Broker, queue: str) -> list[Told]:
    got = await broker.get(queue, CALLER, messages_max=1000, bytes_max=0, remove=False)
    found: list[Told] = []
    for each in got.runs:
        encoded = each.block.properties()
        for at, body in enumerate(each.block.bodies()):
            data = encoded[at if len(encoded) > 1 else 0]
            read = common.Properties.FromString(data)
            found.append(Told(body, read.exchange, (read.routing_key, *read.cc)))
    return found


# --- refusals ---

Refused = Callable[[Broker], Awaitable[object]]


async def _used_exclusively(broker: Broker) -> None:
    exclusive = await broker.consuming.open_here("q", Session(), ConsumerTerms(exclusive=True))
    try:
        await broker.consuming.open_here("q", Session())
    finally:
        exclusive.close(in_good_order=True)


async def _delete_while_used(broker: Broker) -> None:
    consumer = await broker.consuming.open_here("q", Session())
    try:
        await broker.delete("q", DeleteConditions(if_unused=True), CALLER)
    finally:
        consumer.close(in_good_order=True)


async def _of_another_connection(broker: Broker) -> None:
    mine = Caller(5.0, connection=broker.orphans.open().id)
    await broker.declare("mine", QueueArguments(exclusive=True), mine)
    await broker.declare_passively("mine", CALLER)


async def _not_exclusive_any_more(broker: Broker) -> None:
    mine = Caller(5.0, connection=broker.orphans.open().id)
    await broker.declare("mine", QueueArguments(exclusive=True), mine)
    await broker.declare("mine", QueueArguments(exact=True), mine)


async def _with_messages(broker: Broker) -> None:
    channel = await channel_of(broker)
    channel.publish("", b"x", key="q")
    await until(lambda: channel.frames == [("ack", 1)])
    await broker.delete("q", DeleteConditions(if_empty=True), CALLER)


async def _bound_exchange(broker: Broker) -> None:
    await bind(broker, "x", "q")
    await broker.topology.delete_exchange("", "x", 5.0, if_unused=True)


REFUSED: tuple[tuple[str, Refused, Reply], ...] = (
    ("declare amq.x", lambda b: exchange(b, "amq.x"), ACCESS_REFUSED),
    ("declare the default exchange", lambda b: exchange(b, ""), ACCESS_REFUSED),
    (
        "delete amq.topic",
        lambda b: b.topology.delete_exchange("", "amq.topic", 5.0, if_unused=False),
        ACCESS_REFUSED,
    ),
    ("declare queue amq.x", lambda b: declare(b, "amq.x"), ACCESS_REFUSED),
    ("bind to the default exchange", lambda b: bind(b, "", "q"), ACCESS_REFUSED),
    ("consume beside an exclusive consumer", _used_exclusively, ACCESS_REFUSED),
    ("passive declare of no queue", lambda b: b.declare_passively("none", CALLER), NOT_FOUND),
    ("passive declare of no exchange", lambda b: b.topology.exchange("", "none"), NOT_FOUND),
    ("bind from no exchange", lambda b: bind(b, "none", "q"), NOT_FOUND),
    ("bind of no queue", lambda b: bind(b, "x", "none"), NOT_FOUND),
    ("get from no queue", lambda b: messages_in(b, "none"), NOT_FOUND),
    ("purge of no queue", lambda b: b.purge("none", CALLER), NOT_FOUND),
    ("consume from no queue", lambda b: b.route("none", CALLER, consumes=True), NOT_FOUND),
    ("another connection's queue", _of_another_connection, RESOURCE_LOCKED),
    ("exclusive, and then not", _not_exclusive_any_more, RESOURCE_LOCKED),
    (
        "declare with another durable",
        lambda b: b.declare("q", QueueArguments(durable=False), CALLER),
        PRECONDITION_FAILED,
    ),
    (
        "declare with another argument",
        lambda b: b.declare("q", QueueArguments(rules=QueueRules(max_length=1)), CALLER),
        PRECONDITION_FAILED,
    ),
    (
        "declare with a bad argument",
        lambda b: declare(b, "p", rules=QueueRules(max_length=-1)),
        PRECONDITION_FAILED,
    ),
    (
        "declare exchange with another type",
        lambda b: exchange(b, "x", ExchangeKind.TOPIC),
        PRECONDITION_FAILED,
    ),
    (
        "declare exchange of no type",
        lambda b: exchange(b, "y", kind_of("none")),
        PRECONDITION_FAILED,
    ),
    ("delete queue with messages if empty", _with_messages, PRECONDITION_FAILED),
    ("delete queue with a consumer if unused", _delete_while_used, PRECONDITION_FAILED),
    ("delete exchange with a binding if unused", _bound_exchange, PRECONDITION_FAILED),
    ("open a channel in no vhost", lambda b: channel_of(b, "none"), NOT_ALLOWED),
)


@pytest.mark.parametrize(
    ("what", "refused", "reply"), REFUSED, ids=[what.replace(" ", "-") for what, _, _ in REFUSED]
)
def test_refusals_have_the_codes_of_rabbitmq(
    tmp_path: Path, what: str, refused: Refused, reply: Reply
) -> None:
    async def work(broker: Broker) -> None:
        await declare(broker, "q")
        await exchange(broker, "x")
        with pytest.raises(BrokerError) as caught:
            await refused(broker)
        assert reply_to(caught.value) == reply
        if "with another" in what:
            # `inequivalent arg 'durable' ...`: clients compare this text, which the door makes.
            assert {"field", "existing", "asked"} <= set(caught.value.metadata)

    with_broker(tmp_path, work)


# --- a channel ---


class FakeChannel:
    """The door's end of a channel in confirm mode: publishes have tags from 1, and answers become
    frames. A refusal that is no answer to one message closes the channel."""

    session: RoutedSession

    def __init__(self) -> None:
        self.tag = 0
        self.frames: list[tuple[str, int]] = []
        self.closed_with: Reply | None = None

    def publish(
        self,
        exchange: str,
        *bodies: bytes,
        key: str = "",
        cc: tuple[str, ...] = (),
        bcc: tuple[str, ...] = (),
        mandatory: bool = False,
    ) -> None:
        batch = RoutedBatch(
            self.tag + 1, bodies, (), lambda: [], exchange, (key, *cc), bcc, mandatory
        )
        self.tag += len(bodies)
        try:
            self.session.publish(batch)
        except BrokerError as error:
            self.close(error)

    def close(self, error: BrokerError) -> None:
        self.closed_with = self.closed_with or reply_to(error)
        self.session.close()

    def answered(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            match answer:
                case AnswerConfirmed(ranges):
                    self._each("ack", *ranges)
                case AnswerReturned(ranges, reason):
                    assert REPLIES[reason] is NO_ROUTE
                    self._each("return", *ranges)
                case AnswerRefused(sequences, error):
                    if reply_to(error) is NACK:
                        self._each("nack", sequences)
                    else:
                        self.close(error)

    def _each(self, method: str, *ranges: tuple[int, int]) -> None:
        for first, last in ranges:
            self.frames += [(method, tag) for tag in range(first, last + 1)]

    def held(self, *, is_held: bool) -> None:
        pass

    def moved(self, reason: Reason) -> None:
        self.closed_with = REPLIES[reason]

    def settled(self) -> list[int]:
        return sorted(tag for method, tag in self.frames if method != "return")


async def channel_of(broker: Broker, vhost: str = "/") -> FakeChannel:
    channel = FakeChannel()
    channel.session = await broker.open_routed(vhost, channel)
    return channel


def test_a_channel_publishes_in_order_through_several_exchanges(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await declare(broker, "q", "other")
        await exchange(broker, "x")
        await exchange(broker, "y", ExchangeKind.TOPIC)
        await bind(broker, "x", "q")
        await bind(broker, "y", "q", "a.#")
        await bind(broker, "y", "other", "#")
        channel = await channel_of(broker)
        ways = (("x", "k"), ("y", "a.b"), ("", "q"))
        for number in range(60):
            name, key = ways[number % 3]
            channel.publish(name, b"%d" % number, key=key)
        await until(lambda: channel.settled() == [*range(1, 61)])
        # All are acks, and those of messages that only one queue has are in order.
        alone = [tag for _, tag in channel.frames if (tag - 1) % 3 != 1]
        assert alone == sorted(alone)
        wanted = [Told(b"%d" % n, ways[n % 3][0], (ways[n % 3][1],)) for n in range(60)]
        assert await messages_in(broker, "q") == wanted
        assert await messages_in(broker, "other") == wanted[1::3]
        assert {method for method, _ in channel.frames} == {"ack"}

    with_broker(tmp_path, work)


def test_cc_and_bcc_are_further_keys_and_bcc_is_told_nobody(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await declare(broker, "q1", "q2", "q3")
        channel = await channel_of(broker)
        channel.publish("", b"x", key="q1", cc=("q2", "q1", "none"), bcc=("q3", "q2"))
        await until(lambda: channel.frames == [("ack", 1)])
        for queue in ("q1", "q2", "q3"):
            told = Told(b"x", "", ("q1", "q2", "q1", "none"))
            assert await messages_in(broker, queue) == [told]
        # One queue is enough for a mandatory message.
        channel.publish("", b"y", key="none", bcc=("q3",), mandatory=True)
        await until(lambda: channel.frames == [("ack", 1), ("ack", 2)])

    with_broker(tmp_path, work)


def test_a_mandatory_message_is_returned_before_its_ack(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await declare(broker, "q")
        channel = await channel_of(broker)
        channel.publish("", b"1", b"2", key="q", mandatory=True)
        channel.publish("", b"3", b"4", key="none", mandatory=True)
        channel.publish("", b"5", key="none")
        channel.publish("amq.fanout", b"6", mandatory=True)
        channel.publish("", b"7", key="q", mandatory=True)
        await until(lambda: channel.settled() == [*range(1, 8)])
        returned = [tag for method, tag in channel.frames if method == "return"]
        assert returned == [3, 4, 6]
        for tag in returned:
            assert channel.frames.index(("return", tag)) < channel.frames.index(("ack", tag))
        assert [each.body for each in await messages_in(broker, "q")] == [b"1", b"2", b"7"]

    with_broker(tmp_path, work)


def test_what_a_full_queue_refuses_is_a_nack_and_the_channel_goes_on(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        rules = QueueRules(max_length=2, overflow=Overflow.REJECT_PUBLISH)
        await declare(broker, "short", rules=rules)
        await declare(broker, "q")
        channel = await channel_of(broker)
        channel.publish("", b"1", b"2", b"3", key="short")
        channel.publish("", b"4", key="q", cc=("short",))
        channel.publish("", b"5", key="q")
        await until(lambda: channel.settled() == [*range(1, 6)])
        answers = {tag: method for method, tag in channel.frames}
        assert answers == {1: "ack", 2: "ack", 3: "nack", 4: "nack", 5: "ack"}
        assert channel.closed_with is None
        # Another queue may have the message that one has refused, as in RabbitMQ.
        assert [each.body for each in await messages_in(broker, "q")] == [b"4", b"5"]

    with_broker(tmp_path, work)


@pytest.mark.parametrize(
    ("exchange_name", "body", "reply"),
    [
        ("none", b"x", NOT_FOUND),
        ("inside", b"x", ACCESS_REFUSED),
        ("", b"x" * 10_001, PRECONDITION_FAILED),
        ("a\r\n", b"x", PRECONDITION_FAILED),
    ],
    ids=["no such exchange", "an internal one", "too large a body", "a name that can't be one"],
)
def test_a_publish_that_can_not_be_closes_the_channel_behind_those_before(
    tmp_path: Path, exchange_name: str, body: bytes, reply: Reply
) -> None:
    """Asynchronously: earlier messages are in their queues. The connection goes on."""

    async def work(broker: Broker) -> None:
        await declare(broker, "q")
        await exchange(broker, "inside", internal=True)
        channel, other = await channel_of(broker), await channel_of(broker)
        channel.publish("", b"before", key="q")
        await until(lambda: channel.frames == [("ack", 1)])
        channel.publish(exchange_name, body, key="none")
        await until(lambda: channel.closed_with is not None)
        assert channel.closed_with == reply
        channel.publish("", b"behind", key="q")
        other.publish("", b"other", key="q")
        await until(lambda: other.frames == [("ack", 1)])
        assert [each.body for each in await messages_in(broker, "q")] == [b"before", b"other"]

    with_broker(tmp_path, work)


def test_channels_have_ids_of_their_own_which_queues_forget(tmp_path: Path) -> None:
    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.start()
        try:
            broker = node.broker
            await declare(broker, "q")
            for number in range(120):
                channel = await channel_of(broker)
                channel.publish("", b"%d" % number, key="q")
                await until(lambda channel=channel: channel.frames == [("ack", 1)])
                channel.session.close()

            async def forgotten() -> bool:
                return (await broker.queue_info("q", CALLER)).producers < 100

            await until(forgotten)
            assert len(await messages_in(broker, "q")) == 120
        finally:
            await node.stop()

    run(main())
