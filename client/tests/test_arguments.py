"""Every argument of every public call and constructor is refused by name if its type is wrong.

The calls and their arguments are read off the classes, so that a new one is in the table by itself;
an annotation that is new here needs a row in `WRONG`. No call gets as far as the cluster: there is
none.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from on_loops import Run

import ringmq
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.loop_thread import run_on_loop
from ringmq.client import Client
from ringmq.connection import ConnectedClient
from ringmq.consuming.consumer import ConsumerOptions
from ringmq.model.positions import QueueLease
from ringmq.operator import Operator
from ringmq.publishing.asked import MessageOptions
from ringmq.reading.lease import HeldLease
from ringmq.reading.sync_reader import SyncLease, SyncReader
from ringmq.sync import SyncClient, SyncConsumer, SyncPublisher
from ringmq.sync_operator import SyncOperator
from ringmq.sync_topology import SyncTopology
from ringmq.topology import TopologyCalls
from ringmq.v1 import common_pb2 as common

# What an argument of this annotation is not.
WRONG: dict[str, list[object]] = {
    "str": [None, 5, b"q"],
    "str | None": [5, b"q"],
    "int": [None, "5", 5.0, True],
    "int | None": ["5", 5.0, True],
    "float": [None, "5", True, float("nan")],
    "float | None": ["5", True, float("nan")],
    "bool": [None, "yes", 1],
    "bool | None": ["no", 0],
    "bytes": [None, "x", 5],
    "bytes | None": ["x", 5],
    "str | Iterable[str]": [None, 5, [5], b"x"],
    "Sequence[str]": ["key", [5], 5],
    "Sequence[bytes]": [None, 5, "x", b"x"],
    "Iterable[bytes]": [None, 5, "x", b"x"],
    "tuple[str, ...] | None": ["ab", ["a"], (5,)],
    "Mapping[str, str] | None": [[1], "x", {1: "a"}, {"a": 1}],
    "Mapping[str, HeaderValue]": [None, [1], {1: 1}],
    "Mapping[str, HeaderValue] | None": [[1], "x", {1: 1}],
    "QueueMode": [None, "lazy", common.QUEUE_MODE_LAZY],
    "QueueMode | None": ["lazy", ringmq.Overflow.DROP_HEAD],
    "MasterLocator | None": ["random", 3],
    "ExchangeType": [None, "topic"],
    "SyncMode | None": ["automatic"],
    "ForcedPromotion | None": ["refused"],
    "ApplyTo": [None, "queues", 1],
    "Overflow | None": ["drop-head", ringmq.QueueMode.LAZY],
    "BrowseSource": [None, "mirror"],
    "QueueRules": [None, {"max_length": 5}],
    "Mirrors | None": ["all", 2],
    "Policy": [None, "p", {"name": "p"}],
    "Numbering | None": [("id", 1)],
    "Properties | None": [{"message_id": "m"}, "m", [5]],
    "Properties | Sequence[Properties] | None": [{"message_id": "m"}, "m", ["m"]],
    "Batch | Message | int": [None, "5", 5.0, True, [1]],
    "SharedPrefetch": [None, 5],
    "SharedPrefetch | None": [5, (5, 0)],
    "HeldLease | None": ["lease", 5],
    "SyncLease | None": ["lease", 5],
    "Callable[[int], None] | None": ["x", 5],
    "Callable[[bool], None] | None": ["x", 5],
    "Callable[[], None] | None": ["x", 5],
    "Callable[[tuple[BlockReason, ...]], None] | None": ["x", 5],
    "Callable[[ReplicaComparison], None]": [None, "x"],
    "Callable[[Share], None]": [None, "x"],
}
# What arguments without a default are given meanwhile.
GIVEN: dict[str, object] = {
    "seeds": "127.0.0.1:1",
    "name": "q",
    "queue": "q",
    "pattern": "^q",
    "mode": ringmq.QueueMode.LAZY,
    "node": "a",
    "exchange": "e",
    "source": "e",
    "destination": "q",
    "vhost": "v",
    "policy": ringmq.Policy("p", "^q", min_insync=1),
    "definitions": b"{}",
    "body": b"x",
    "bodies": [b"x"],
    "what": 1,
    "prefetch": 1,
    "first": 0,
    "end": 0,
    "shared": ringmq.SharedPrefetch(),
    "queue_id": "q",
    "epoch": 1,
    "type": "t",
    "data": b"",
    "change_share": print,
}
ASYNC = (
    ConnectedClient,
    Client,
    Operator,
    TopologyCalls,
    ringmq.Publisher,
    ringmq.Consumer,
    ringmq.Reader,
    HeldLease,
    ringmq.SharedPrefetch,
)
SYNC = (SyncClient, SyncOperator, SyncTopology, SyncPublisher, SyncConsumer, SyncReader, SyncLease)
CONSTRUCTORS: tuple[Callable[..., object], ...] = (
    ringmq.connect,
    ringmq.connect_sync,
    ringmq.SharedPrefetch,
    ringmq.QueueRules,
    ringmq.Mirrors,
    ringmq.Policy,
    ringmq.Numbering,
    ringmq.OtherValue,
    ringmq.Properties,
)
# Users have them from us.
OURS = {ringmq.Message, ringmq.Batch, ringmq.ReplicaComparison}
# Of a delivered message: no call takes them.
NOT_SENT = {"exchange", "routing_key", "priority", "expiration_ms", "deaths", "cc"}
# Of properties, at which only protobuf looks: they are made for each message.
TAKEN_BY_PROTOBUF = (None, b"q", True)
OPTIONS: dict[str, type] = {
    "Unpack[ConsumerOptions]": ConsumerOptions,
    "Unpack[MessageOptions]": MessageOptions,
}
LEASE = QueueLease("l", "h", b"i", 1, 1000, 0)


def arguments(call: Callable[..., object]) -> dict[str, tuple[str, bool]]:
    """By name: the annotation's text, and whether it has to be given."""
    found: dict[str, tuple[str, bool]] = {}
    for each in inspect.signature(call).parameters.values():
        if each.name == "self":
            continue
        assert isinstance(each.annotation, str), each
        if each.kind is each.VAR_KEYWORD:
            for name, hint in OPTIONS[each.annotation].__annotations__.items():
                found[name] = (hint.__forward_arg__, False)
        else:
            found[each.name] = (each.annotation, each.default is each.empty)
    return found


def calls_of(kind: type) -> Iterator[str]:
    return (
        name
        for name, each in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(each)
    )


def wrong_ones(call: Callable[..., object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Each argument, and all that is passed so that it alone is wrong."""
    asked = arguments(call)
    rest = {name: GIVEN[name] for name, (_, needed) in asked.items() if needed}
    for name, (annotation, _) in asked.items():
        if call is ringmq.Properties and name in NOT_SENT:
            continue
        for value in WRONG[annotation]:
            yield name, rest | {name: value}


def check_refused(error: ringmq.WrongTypeError, name: str, value: object) -> None:
    assert error.field == name, error
    assert name in error.message
    assert isinstance(error, TypeError)
    assert type(value).__name__ in error.message or str(value) in error.message, error


def lease_of(holder: object = None) -> HeldLease:
    async def nothing(held: HeldLease, deadline_s: float | None) -> Any:
        raise AssertionError

    return HeldLease(LEASE, asked_at=0.0, renew=nothing, release=nothing)


def targets(client: Client) -> dict[type, object]:
    return {
        ConnectedClient: client,
        Client: client,
        Operator: client.operator,
        TopologyCalls: client.topology,
        ringmq.Publisher: client.publisher("q"),
        ringmq.Consumer: client.consumer("q"),
        ringmq.Reader: client.reader("q"),
        HeldLease: lease_of(),
        ringmq.SharedPrefetch: ringmq.SharedPrefetch(),
    }


async def awaited(call: Callable[..., object], passed: dict[str, object]) -> None:
    answer = call(**passed)
    if isinstance(answer, Awaitable):
        await answer


def unconnected() -> Client:
    return Client(KnownNodes(["127.0.0.1:1"], deadline_s=0.1, receive_bytes_max=1000))


@pytest.mark.parametrize("kind", ASYNC, ids=lambda kind: kind.__name__)
def test_wrong_types_are_named(run: Run, kind: type) -> None:
    async def test() -> None:
        client = unconnected()
        target = targets(client)[kind]
        for call in calls_of(kind):
            for name, passed in wrong_ones(getattr(target, call)):
                with pytest.raises(ringmq.WrongTypeError) as caught:
                    await awaited(getattr(target, call), passed)
                check_refused(caught.value, name, passed[name])
        await client.close()

    run(test)


@pytest.mark.parametrize("kind", ASYNC, ids=lambda kind: kind.__name__)
def test_unknown_arguments_are_refused(run: Run, kind: type) -> None:
    async def test() -> None:
        client = unconnected()
        target = targets(client)[kind]
        for call in calls_of(kind):
            asked = arguments(getattr(target, call))
            rest = {name: GIVEN[name] for name, (_, needed) in asked.items() if needed}
            with pytest.raises(TypeError, match="unexpected keyword argument 'exlusive'"):
                await awaited(getattr(target, call), rest | {"exlusive": True})
        await client.close()

    run(test)


def sent(made: object) -> None:
    """Properties come from nodes as well, so they are looked at when they go there."""
    if isinstance(made, ringmq.Properties):
        made.to_wire()


def ended(answer: object) -> None:
    if isinstance(answer, concurrent.futures.Future):
        answer.result(5)


async def _sync_targets() -> dict[type, object]:
    client = unconnected()
    found = targets(client)
    return {
        SyncClient: SyncClient(client),
        SyncOperator: SyncOperator(client.operator),
        SyncTopology: SyncTopology(client.topology),
        SyncPublisher: SyncPublisher(typing.cast(ringmq.Publisher, found[ringmq.Publisher])),
        SyncConsumer: SyncConsumer(typing.cast(ringmq.Consumer, found[ringmq.Consumer])),
        SyncReader: SyncReader(client.reader("q")),
        SyncLease: SyncLease(lease_of()),
    }


@pytest.mark.parametrize("kind", SYNC, ids=lambda kind: kind.__name__)
def test_wrong_types_are_named_without_asyncio(kind: type) -> None:
    made = run_on_loop(_sync_targets())
    target = made[kind]
    for call in calls_of(kind):
        asked = arguments(getattr(target, call))
        rest = {name: GIVEN[name] for name, (_, needed) in asked.items() if needed}
        for name, passed in wrong_ones(getattr(target, call)):
            with pytest.raises(ringmq.WrongTypeError) as caught:
                ended(getattr(target, call)(**passed))
            check_refused(caught.value, name, passed[name])
        with pytest.raises(TypeError, match="unexpected keyword argument 'exlusive'"):
            ended(getattr(target, call)(**rest, exlusive=True))
    typing.cast(SyncClient, made[SyncClient]).close()


@pytest.mark.parametrize("make", CONSTRUCTORS, ids=lambda make: make.__name__)
def test_constructors_name_wrong_types(make: Callable[..., object]) -> None:
    for name, passed in wrong_ones(make):
        if make is ringmq.Properties and passed[name] in TAKEN_BY_PROTOBUF:
            continue
        with pytest.raises(ringmq.WrongTypeError) as caught:
            sent(make(**passed))
        check_refused(caught.value, name, passed[name])


def test_all_that_users_make_or_call_is_in_the_tables() -> None:
    classes = {
        each
        for each in (getattr(ringmq, name) for name in ringmq.__all__)
        if isinstance(each, type) and not issubclass(each, enum.Enum | Exception)
    }
    with_calls = {each for each in classes if not dataclasses.is_dataclass(each)}
    assert with_calls - {*ASYNC, *CONSTRUCTORS} <= OURS
    calls = [getattr(kind, name) for kind in (*ASYNC, *SYNC) for name in calls_of(kind)]
    named = {
        word
        for call in (*CONSTRUCTORS, *calls)
        for name, (annotation, _) in arguments(call).items()
        if call is not ringmq.Properties or name not in NOT_SENT
        for word in re.findall(r"\w+", annotation)
    }
    values = {each for each in classes - with_calls if each.__name__ in named}
    assert values - {*CONSTRUCTORS} <= OURS


@pytest.mark.parametrize(
    ("headers", "kind", "says"),
    [
        ({"a": object()}, ringmq.WrongTypeError, "header 'a': .* type object"),
        ({"a": [1, {"b": object()}]}, ringmq.WrongTypeError, "header 'a': .*'b': .* type object"),
        ({"a": {1: 1}}, ringmq.BadRequestError, "header 'a'"),
        ({"a": 2**70}, ringmq.BadRequestError, "header 'a': .*range"),
        ({"a": "\udcff"}, ringmq.BadRequestError, "header 'a'"),
        ({"\udcff": 1}, ringmq.BadRequestError, "headers is not UTF-8"),
    ],
    ids=["a type", "deep inside", "a key", "too large", "not UTF-8", "a name"],
)
def test_headers_are_named(headers: Any, kind: type[ringmq.RingMQError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        ringmq.Properties(headers=headers).to_wire()
    assert isinstance(caught.value, ringmq.BadRequestError)
    assert caught.value.field == "headers"


def test_what_is_out_of_range_is_named() -> None:
    for wrong in ({"timestamp_ms": -(2**64)}, {"app_id": "\udcff"}):
        (field,) = wrong
        with pytest.raises(ringmq.BadRequestError, match=field) as caught:
            ringmq.Properties(**typing.cast(Any, wrong)).to_wire()
        assert (type(caught.value), caught.value.field) == (ringmq.BadRequestError, field)


def test_numbers_of_others_will_do() -> None:
    """Such as numpy's, which are no `int`."""

    class Index:
        def __index__(self) -> int:
            return 5

    rules = ringmq.QueueRules(max_length=typing.cast(int, Index())).to_wire()
    assert rules is not None
    assert rules.max_length == 5
    assert ringmq.Properties(headers={"at": datetime.now()}).to_wire().headers["at"].timestamp_s


def test_a_body_is_not_shown(run: Run) -> None:
    async def test() -> None:
        client = unconnected()
        publisher = client.publisher("q")
        for bodies in ("secret", b"secret", ["secret"], [bytearray(b"secret")]):
            with pytest.raises(ringmq.WrongTypeError) as caught:
                await publisher.publish_batch(typing.cast(Any, bodies))
            assert "secret" not in str(caught.value)
        await client.close()

    run(test)


def test_what_is_said() -> None:
    for make, said in (
        (
            lambda: ringmq.QueueRules(message_ttl_ms=typing.cast(Any, "5")),
            "message_ttl_ms is an int or None, not '5' (str)",
        ),
        (
            lambda: ringmq.Policy("p", "^q", sync_mode=typing.cast(Any, "manual")),
            "sync_mode is a SyncMode (AUTOMATIC, MANUAL) or None, not 'manual' (str)",
        ),
        (
            lambda: ringmq.Mirrors(nodes=typing.cast(Any, ["a", 5])),
            "nodes is a tuple of str or None, not list of int, str",
        ),
    ):
        with pytest.raises(ringmq.WrongTypeError) as caught:
            make()
        assert str(caught.value) == said
