"""Which node is asked, which failures are tried again, and the error that is told at last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import grpc.aio
import pytest
from fake_broker import FakeNode
from fake_nodes import two_nodes
from on_loops import Run, error_in_time
from waiting import leeway

import ringmq
from ringmq.calls.known_nodes import parse_seeds
from ringmq.v1 import common_pb2 as common


def test_seeds_are_a_list_or_text() -> None:
    assert parse_seeds("a:1, b:2,a:1") == ["a:1", "b:2"]
    assert parse_seeds(["[::1]:7801"]) == ["[::1]:7801"]
    for wrong in ("", " , ", "nohost", "a:", ":1", "a:99999"):
        with pytest.raises(ringmq.BadRequestError):
            parse_seeds(wrong)


def test_a_call_goes_on_to_another_node_and_through_a_passing_trouble(run: Run) -> None:
    async def test() -> None:
        async with two_nodes(seeds=1) as (client, one, two):
            await one.die()
            # Known from the cluster's status, not from the seeds.
            assert (await client.cluster_status()).node == two.address
            two.faults.fail = [common.REASON_NO_MASTER, common.REASON_REGISTRY_UNAVAILABLE]
            await client.declare_queue("q")
            two.faults.fail = [common.REASON_NO_MASTER] * 1000
            with pytest.raises(ringmq.UnavailableError) as caught:
                await client.declare_queue("q", deadline_s=1.0)
            assert caught.value.reason == "NO_MASTER"
            assert caught.value.retry_after_s == pytest.approx(0.01)

    run(test)


def test_a_refusal_after_a_timeout_leaves_the_outcome_unknown(run: Run) -> None:
    """A purge that was not answered may have been done, and no later refusal takes that back."""

    refusals = [common.REASON_TIMEOUT, *[common.REASON_TOO_FEW_SYNCHRONISED] * 1000]
    left = 0

    async def refused(ask: Callable[[ringmq.Client, float], Awaitable[object]]) -> type:
        async def call(deadline_s: float) -> None:
            nonlocal left
            async with FakeNode() as node, ringmq.connect(node.address) as client:
                await client.declare_queue("q")
                node.faults.fail = [*refusals]
                try:
                    await ask(client, deadline_s)
                finally:
                    left = len(node.faults.fail)

        # The last answer may not have been heard.
        error = await error_in_time(call, lambda _: left <= len(refusals) - 3, deadline_s=0.2)
        return type(error)

    async def test() -> None:
        told = await refused(lambda client, s: client.purge_queue("q", deadline_s=s))
        assert told is ringmq.TimedOutError
        # A question changes nothing, so the last answer counts.
        told = await refused(lambda client, s: client.queue("q", deadline_s=s))
        assert told is ringmq.TooFewSynchronisedError
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            # A repeat that gets an answer has an outcome.
            node.faults.fail = [common.REASON_TIMEOUT, common.REASON_QUEUE_NOT_FOUND]
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.purge_queue("q")
            node.faults.fail = [common.REASON_TIMEOUT]
            assert await client.purge_queue("q") == 0

    run(test)


def test_nobody_there_is_unavailable_within_the_deadline(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node:
            address = node.address
        took_s = 0.0

        async def connect(deadline_s: float) -> None:
            nonlocal took_s
            start = time.monotonic()
            try:
                await ringmq.connect(address, deadline_s=deadline_s)
            finally:
                took_s = time.monotonic() - start - deadline_s

        def was_asked(error: ringmq.RingMQError) -> bool:
            return not isinstance(error, ringmq.TimedOutError)

        error = await error_in_time(connect, was_asked, deadline_s=0.5)
        assert isinstance(error, ringmq.UnavailableError)
        assert took_s < leeway(1.5)

    run(test)


def test_a_port_that_is_not_ours_is_told_from_one_that_is_closed(run: Run) -> None:
    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def test() -> None:
        # Another gRPC service ...
        other = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        port = other.add_insecure_port("127.0.0.1:0")
        await other.start()
        with pytest.raises(ringmq.NotRingMQError):
            await ringmq.connect(f"127.0.0.1:{port}", deadline_s=0.3)
        await other.stop(0)
        # ... and none at all.
        server = await asyncio.start_server(garbage, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises((ringmq.UnavailableError, ringmq.TimedOutError)):
            await ringmq.connect(f"127.0.0.1:{port}", deadline_s=0.5)
        server.close()
        await server.wait_closed()

    run(test)


def test_a_call_that_close_breaks_off_connects_to_nobody(run: Run) -> None:
    """It was made again, on a connection that nobody closed."""

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            one.faults.silent = two.faults.silent = True
            calls = [
                asyncio.create_task(client.queue("q")),
                asyncio.create_task(client.locate_queue("q", deadline_s=20)),
            ]
            await asyncio.sleep(0.1)
            await client.close()
            one.faults.silent = two.faults.silent = False
            for call in calls:
                with pytest.raises(ringmq.ClosedError):
                    await asyncio.wait_for(call, leeway(5))
            assert not client._nodes._channels

    run(test)


def test_a_connection_for_exclusive_queues_is_had_within_the_deadline(run: Run) -> None:
    """Also where nobody answers to the connection itself, as behind a cut."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:

            async def never(path: str) -> object:
                return await asyncio.get_running_loop().create_future()

            client._nodes.next_one().wire.stream = never  # type: ignore[assignment, method-assign]
            asked = client.declare_queue("q", exclusive=True, deadline_s=0.2)
            with pytest.raises(ringmq.TimedOutError):
                await asyncio.wait_for(asked, leeway(5))

    run(test)


def test_an_unbind_whose_first_answer_was_lost_is_done(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.topology.bind("x", "q")
            node.faults.fail = [common.REASON_TIMEOUT]
            assert await client.topology.unbind("x", "q")
            assert not node.bound
            assert not await client.topology.unbind("x", "q")

    run(test)
