"""Each method of the broker that names a queue, on another connection's exclusive one.

A door may call all of these, and holds no rule: what `doors/test_exclusive_calls.py` shows of gRPC
has to be so for any other door. The methods come from the classes, so a new one has to be entered.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from loops import run
from node.tests.nodes import lone_node

from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.browsing import Browsing
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.consuming.listing import ConsumerListing
from ringmq_node.broker.consuming.subscribing import Subscribing
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.broker.topology.service import BindingAsked, TopologyService
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import QueueMode

# Parameters by which a method is told a queue.
NAMING = frozenset(("queue", "queues", "asked", "destination"))
FORWARDED = Caller(5.0, forwarded=True)
BINDING = BindingAsked("", "amq.direct", "x", routing_key="k")

Use = Callable[[Broker, Caller], Awaitable[Any]]
REFUSED: dict[str, Use] = {
    "Broker.route": lambda broker, caller: broker.route("x", caller, consumes=True),
    "Broker.subscribe": lambda broker, caller: broker.subscribe(
        broker.consuming.channel(), "x", cast(Any, None), caller
    ),
    "Broker.declare": lambda broker, caller: broker.declare("x", QueueArguments(), caller),
    "Broker.declare_passively": lambda broker, caller: broker.declare_passively("x", caller),
    "Broker.set_mode": lambda broker, caller: broker.set_mode("x", QueueMode.LAZY, caller),
    "Broker.delete": lambda broker, caller: broker.delete("x", DeleteConditions(), caller),
    "Broker.delete_by_force": lambda broker, caller: broker.delete_by_force("x", caller),
    "Broker.purge": lambda broker, caller: broker.purge("x", caller),
    "Broker.get": lambda broker, caller: broker.get(
        "x", caller, messages_max=1, bytes_max=1, remove=True
    ),
    "Broker.discard_damaged": lambda broker, caller: broker.discard_damaged("x", caller),
    "Browsing.route": lambda broker, caller: broker.browsing.route("x", caller),
    "Browsing.stat": lambda broker, caller: broker.browsing.stat("x", caller),
    "Browsing.range_end": lambda broker, caller: broker.browsing.range_end(
        "x", caller, None, 0, messages_max=1, bytes_max=0
    ),
    "Browsing.browse": lambda broker, caller: anext(
        broker.browsing.browse("x", caller, None, 0, 0)
    ),
    "Browsing.acknowledge_below": lambda broker, caller: broker.browsing.acknowledge_below(
        "x", caller, None, 0, lease="", token=0
    ),
    "Browsing.acquire_lease": lambda broker, caller: broker.browsing.acquire_lease(
        "x", caller, None, lease="l", holder="h", instance=b"i", ttl_ms=5000
    ),
    "Browsing.renew_lease": lambda broker, caller: broker.browsing.renew_lease(
        "x", caller, lease="l", token=1, ttl_ms=5000
    ),
    "Browsing.release_lease": lambda broker, caller: broker.browsing.release_lease(
        "x", caller, lease="l", token=1
    ),
    "TopologyService.bind": lambda broker, caller: broker.topology.bind(BINDING, caller),
    "TopologyService.unbind": lambda broker, caller: broker.topology.unbind(BINDING, caller),
}
ALLOWED = {
    "Broker.open_publisher": "anybody may publish",
    "Broker.locate": "a look; publishers need it",
    "Broker.queue_info": "a look, as a listing",
    "Broker.own_queues": "a look, as a listing, for nodes",
    "Broker.replica_info": "a look, as a listing",
    "Broker.verify": "an operator's: it compares replicas, and shows no message",
    "Broker.sync_queue": "an operator's: replicas fetch, or stop fetching",
    "Broker.promote": "an operator's: the queue's master moves, or there is one again",
    "Subscribing.open": "for a channel, whose queues `Broker.subscribe` has checked",
    "Subscribing.open_here": "for streams that `Broker.route` has admitted, and subscriptions",
    "ConsumerListing.page": "a look, as a listing",
    "TopologyService.bindings": "a look, as a listing",
}
CLASSES = (Broker, Browsing, TopologyService, Subscribing, ConsumerListing)


def test_every_method_that_names_a_queue_is_listed() -> None:
    found = [
        f"{each.__name__}.{name}"
        for each in CLASSES
        for name, method in inspect.getmembers(each, inspect.isfunction)
        if not name.startswith("_") and NAMING & {*inspect.signature(method).parameters}
    ]
    assert sorted(found) == sorted([*REFUSED, *ALLOWED])


def test_another_connection_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.start()
        try:
            async with asyncio.timeout(20):
                mine, other = node.orphans.open(), node.orphans.open()
                me = Caller(5.0, connection=mine.id)
                await node.broker.declare("x", QueueArguments(exclusive=True), me)
                for stranger in (Caller(5.0), Caller(5.0, connection=other.id)):
                    for name, use in REFUSED.items():
                        refusal = await refusal_of(use(node.broker, stranger))
                        assert refusal is Reason.QUEUE_LOCKED, name
                # Another node has checked the caller of a call that it passes on.
                for name in [name for name in REFUSED if name != "Broker.declare"]:
                    await node.broker.declare("x", QueueArguments(exclusive=True), me)
                    refusal = await refusal_of(REFUSED[name](node.broker, FORWARDED))
                    assert refusal is not Reason.QUEUE_LOCKED, name
        finally:
            await node.stop()

    run(main())


async def refusal_of(use: Awaitable[Any]) -> Reason | None:
    try:
        await use
    except BrokerError as error:
        return error.reason
    except StopAsyncIteration:
        pass
    return None
