"""Reading by positions, through the door: what a reader gets, and each thing that it can't have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from loops import run
from node.tests.nodes import lone_node, replica_of

import ringmq
from ringmq import (
    BrowsedBatch,
    Client,
    LeaseHeldError,
    LeaseLostError,
    Numbering,
    PositionsGoneError,
    PositionsHeldError,
    PositionsMovedError,
    Properties,
    Reader,
    TimedOutError,
    UnavailableError,
)
from ringmq.calls.node_channel import STREAM_WINDOW_BYTES
from ringmq_node.broker import browsing
from ringmq_node.broker.caller import Caller
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.node import Node
from ringmq_node.replica import positions

T = TypeVar("T")


def test_a_client_is_sent_the_next_piece_while_it_takes_one() -> None:
    """With a window for one piece alone, the node would wait for each piece's credit."""
    assert STREAM_WINDOW_BYTES >= 2 * positions.PIECE_BYTES_MAX


def with_reader(folder: Path, work: Callable[[Client, Reader, Node], Awaitable[None]]) -> None:
    """A client and a reader of the empty queue q of one node."""

    async def main() -> None:
        node = await lone_node(folder)
        async with asyncio.timeout(20):
            await node.start()
            try:
                async with ringmq.connect(node.address) as client:
                    await client.declare_queue("q")
                    await work(client, client.reader("q"), node)
            finally:
                await node.stop()

    run(main())


async def publish(client: Client, *bodies: bytes, properties: Any = None) -> None:
    async with client.publisher("q") as publisher:
        await publisher.publish_batch(bodies, properties)


async def all_of(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def bodies_of(batches: list[BrowsedBatch]) -> dict[int, bytes]:
    return {m.position: m.body for batch in batches for m in batch.messages}


def test_a_range_is_read_again_and_again_and_stays(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        sent = {at: bytes([at]) * at for at in range(50)}
        await publish(client, *sent.values(), properties=Properties(message_id="m"))
        async with client.consumer("q", prefetch=3) as consumer:
            batch = await consumer.next_batch(timeout_s=5)
            assert batch is not None
            assert batch.positions == [(0, 2)]
            # A consumer's messages are read too: it may give them back.
            for _ in range(2):
                batches = await all_of(reader.browse(0))
                assert bodies_of(batches) == sent
                assert batches[0].first == 0
                assert batches[-1].end == 50
                assert batches[0].messages[0].properties.message_id == "m"
            await consumer.ack(batch[1:2], wait=True)
            assert set(bodies_of(await all_of(reader.browse(0, 5)))) == {0, 2, 3, 4}
        cut = await all_of(reader.browse(40, body_bytes_max=2))
        assert bodies_of(cut) == {at: bytes([at]) * 2 for at in range(40, 50)}
        assert [size for each in cut for size in each.body_sizes] == [*range(40, 50)]
        bare = await all_of(reader.browse(40, body_bytes_max=0))
        assert set(bodies_of(bare).values()) == {b""}
        assert [size for each in bare for size in each.body_sizes] == [*range(40, 50)]
        assert await all_of(reader.browse(7, 7)) == []

    with_reader(tmp_path, work)


@pytest.mark.parametrize("columns_by_node", [True, False])
def test_arrow_batches_have_the_same_rows(tmp_path: Path, columns_by_node: bool) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[bytes([at]) for at in range(40)])
        browse = reader.browse_arrow(0, columns_by_node=columns_by_node)
        pieces = [piece async for piece in browse]
        assert (pieces[0].first, pieces[-1].end) == (0, 40)
        rows = [row for piece in pieces for row in piece.rows.to_pylist()]
        assert {row["position"]: row["body"] for row in rows} == bodies_of(
            await all_of(reader.browse(0))
        )

    with_reader(tmp_path, work)


def test_the_reader_without_asyncio_is_the_same(tmp_path: Path) -> None:
    def in_a_thread(address: str) -> None:
        with ringmq.connect_sync(address) as client:
            reader = client.reader("q")
            with reader.acquire_lease("ingest", holder="a thread") as lease:
                assert lease.expires_in_s > 20
                lease.renew()
                end = reader.range_end(0, messages_max=5).end
                batches = reader.browse(0, end)
                assert [m.body for batch in batches for m in batch.messages] == [b"x"] * 5
                for _ in reader.browse(0):
                    break  # It ends the call.
                assert sum(piece.rows.num_rows for piece in reader.browse_arrow(0)) == 9
                assert reader.ack_up_to(end, lease=lease).messages == 5
            stat = reader.stat()
            assert (stat.leases, stat.messages) == ((), 4)
            assert reader.numbering == stat.numbering

    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 9)
        await asyncio.to_thread(in_a_thread, node.address)

    with_reader(tmp_path, work)


def test_pieces_are_bounded_and_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "PIECE_RUNS_MAX", 3)
    monkeypatch.setattr(positions, "PIECE_MESSAGES_MAX", 4)

    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 40)
        async with client.consumer("q") as consumer:
            batch = await consumer.next_batch(timeout_s=5)
            assert batch is not None
            for at in range(1, 20, 2):
                await consumer.ack(at, at, wait=at == 19)
        batches = await all_of(reader.browse(0))
        assert [b.first for b in batches[1:]] == [b.end for b in batches[:-1]]
        assert all(len(b.messages) <= 4 for b in batches)
        assert len(batches) == 4 + 5
        assert set(bodies_of(batches)) == set(range(40)) - set(range(1, 20, 2))

    with_reader(tmp_path, work)


def test_range_ends_are_the_largest_within_their_limits(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x" * 10] * 3000, b"y" * 5000, b"z")
        for limit in (1, 2, 63, 64, 65, 1023, 1024, 1025, 2999, 3000, 3001):
            counted = await reader.range_end(0, messages_max=limit)
            assert (counted.end, counted.messages) == (limit, limit)
            counted = await reader.range_end(0, bytes_max=10 * min(limit, 3000) + 9)
            assert (counted.end, counted.bytes) == (min(limit, 3000), 10 * min(limit, 3000))
        # One message always passes.
        assert (await reader.range_end(5, bytes_max=1)).end == 6
        assert (await reader.range_end(3000, bytes_max=1)).messages == 1
        assert (await reader.range_end(0)).end == 3002
        assert (await reader.range_end(3002)).messages == 0

    with_reader(tmp_path, work)


def test_what_was_acknowledged_is_gone_by_name(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 20)
        done = await reader.ack_up_to(8)
        assert (done.messages, done.acked_end) == (8, 8)
        assert (await reader.ack_up_to(8)).messages == 0
        assert (await reader.ack_up_to(5)).acked_end == 8
        with pytest.raises(PositionsGoneError, match="positions 3 to 7 can't be read") as gone:
            await all_of(reader.browse(3, 12))
        assert (gone.value.first, gone.value.last) == (3, 7)
        assert len(bodies_of(await all_of(reader.browse(8)))) == 12
        stat = await reader.stat()
        assert (stat.first, stat.end, stat.acked_end, stat.messages) == (8, 20, 8, 12)
        assert stat.numbering == Numbering(replica_of(node).record.id, 0)

    with_reader(tmp_path, work)


def test_a_purge_is_told_and_not_skipped(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 10)
        assert await client.purge_queue("q") == 10
        await publish(client, b"new")
        for read in (all_of(reader.browse(4, 11)), reader.range_end(4, messages_max=3)):
            with pytest.raises(PositionsGoneError, match=r"4 to .*a purge has removed") as gone:
                await read
            assert gone.value.first == 4
        assert bodies_of(await all_of(reader.browse(10))) == {10: b"new"}

    with_reader(tmp_path, work)


def test_a_purge_in_the_middle_of_a_browse_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "PIECE_MESSAGES_MAX", 2)

    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 10)
        pieces = node.broker.browsing.browse("q", Caller(), None, 0, 10)
        assert (await anext(pieces)).end == 2
        await client.purge_queue("q")
        with pytest.raises(BrokerError) as gone:
            await anext(pieces)
        assert gone.value.reason is Reason.POSITIONS_GONE
        assert gone.value.metadata["first"] == "2"

    with_reader(tmp_path, work)


def test_a_queue_declared_anew_is_another_one(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 3)
        await reader.stat()
        await client.delete_queue("q")
        await client.declare_queue("q")
        await publish(client, *[b"y"] * 3)
        for call in (
            reader.stat(),
            all_of(reader.browse(0, 3)),
            reader.range_end(0),
            reader.ack_up_to(2),
            reader.acquire_lease("l"),
        ):
            with pytest.raises(PositionsMovedError):
                await call
        again = client.reader("q", numbering=reader.numbering)
        with pytest.raises(PositionsMovedError, match="positions 1 to 2 belong to other"):
            await all_of(again.browse(1, 3))

    with_reader(tmp_path, work)


def test_a_queue_of_a_vhost_is_read_and_named(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await client.topology.create_vhost("shop")
        async with ringmq.connect(node.address, vhost="shop") as other:
            await other.declare_queue("q")
            async with other.publisher("q") as publisher:
                await publisher.publish(b"of the shop")
            for there in (other.reader("q"), client.reader("q", vhost="shop")):
                assert bodies_of(await all_of(there.browse(0))) == {0: b"of the shop"}
            await other.purge_queue("q")
            with pytest.raises(PositionsGoneError, match="vhost shop"):
                await all_of(there.browse(0, 1))
        assert await all_of(reader.browse(0)) == []
        with pytest.raises(ringmq.VhostNotFoundError):
            await client.reader("q", vhost="none").stat()

    with_reader(tmp_path, work)


def test_positions_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, b"x")
        with pytest.raises(PositionsGoneError, match="positions 1 to 8 "):
            await all_of(reader.browse(0, 9))
        with pytest.raises(PositionsGoneError):
            await reader.ack_up_to(2)
        with pytest.raises(PositionsGoneError):
            await reader.range_end(2)

    with_reader(tmp_path, work)


def test_no_ack_takes_what_a_consumer_has(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 10)
        async with client.consumer("q", prefetch=4) as consumer:
            batch = await consumer.next_batch(timeout_s=5)
            assert batch is not None
            await consumer.ack(batch[:2], wait=True)
            with pytest.raises(PositionsHeldError, match="positions 2 to 5 are with consumers"):
                await reader.ack_up_to(7)
            assert (await reader.ack_up_to(2)).messages == 0
        replica_of(node).store.check()

    with_reader(tmp_path, work)


def test_the_second_ingest_is_told_who_has_the_lease(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 10)
        clock = [1_000_000]
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(node.broker.browsing, "now_ms", lambda: clock[0])
        other = client.reader("q")
        first = await reader.acquire_lease("ingest", ttl_s=5, holder="the first")
        with pytest.raises(LeaseHeldError, match="leased by 'the first' for another") as held:
            await other.acquire_lease("ingest", ttl_s=5, holder="the second")
        assert held.value.holder == "the first"
        with pytest.raises(LeaseHeldError):
            await other.ack_up_to(3)
        assert (await reader.ack_up_to(3, lease=first)).messages == 3
        clock[0] += 4000
        await first.renew()
        clock[0] += 4000
        with pytest.raises(LeaseHeldError):
            await other.acquire_lease("ingest", holder="the second")
        clock[0] += 1000
        second = await other.acquire_lease("ingest", holder="the second")
        assert second.token > first.token
        for call in (reader.ack_up_to(5, lease=first), first.renew()):
            with pytest.raises(LeaseLostError, match="'the second'"):
                await call
        await first.release()
        assert (await other.ack_up_to(5, lease=second)).messages == 2
        await second.release()
        assert (await reader.stat()).leases == ()
        assert (await reader.ack_up_to(6)).messages == 1

    with_reader(tmp_path, work)


def test_an_exclusive_queue_is_read_by_its_connection_alone(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        mine = (await client.declare_queue(exclusive=True)).queue
        async with client.publisher(mine) as publisher:
            await publisher.publish(b"answer")
        own = client.reader(mine)
        lease = await own.acquire_lease("l", instance=b"i")
        async with ringmq.connect(node.address) as stranger:
            foreign = stranger.reader(mine)
            for use in (
                foreign.stat(),
                foreign.range_end(0),
                all_of(foreign.browse(0, 1)),
                all_of(foreign.browse(0, 1, source=ringmq.BrowseSource.ANY)),
                foreign.ack_up_to(1),
                foreign.acquire_lease("l", instance=b"i"),
            ):
                with pytest.raises(ringmq.QueueLockedError, match="exclusive to another"):
                    await use
        # The broker itself refuses, whatever its door has asked before.
        for left in (
            node.broker.browsing.stat(mine, Caller()),
            anext(node.broker.browsing.browse(mine, Caller(), None, 0, 1)),
        ):
            with pytest.raises(BrokerError) as locked:
                await left
            assert locked.value.reason is Reason.QUEUE_LOCKED
        assert bodies_of(await all_of(own.browse(0, 1))) == {0: b"answer"}
        assert (await own.ack_up_to(1, lease=lease)).messages == 1
        await lease.release()

    with_reader(tmp_path, work)


def test_only_so_many_browses_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "BROWSES_MAX", 1)
    monkeypatch.setattr(positions, "PIECE_MESSAGES_MAX", 1)

    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 3)
        pieces = node.broker.browsing.browse("q", Caller(), None, 0, 3)
        await anext(pieces)
        with pytest.raises(UnavailableError, match="browses under way"):
            await all_of(reader.browse(0, 3, deadline_s=0.2))
        await pieces.aclose()  # type: ignore[attr-defined]
        assert len(await all_of(reader.browse(0, 3))) == 3

    with_reader(tmp_path, work)


def test_pieces_share_the_budget_of_gets(tmp_path: Path) -> None:
    async def work(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 3)
        gets = node.broker.buffers.gets
        async with gets.reserved(gets.limit_bytes):
            with pytest.raises((UnavailableError, TimedOutError)):
                await all_of(reader.browse(0, 3, deadline_s=0.2))
        assert len(bodies_of(await all_of(reader.browse(0, 3)))) == 3
        assert gets.used_bytes == 0

    with_reader(tmp_path, work)


def test_leases_and_ends_are_there_after_a_restart(tmp_path: Path) -> None:
    async def first(client: Client, reader: Reader, node: Node) -> None:
        await publish(client, *[b"x"] * 10)
        await reader.acquire_lease("ingest", holder="me")
        await client.purge_queue("q")

    async def second(client: Client, reader: Reader, node: Node) -> None:
        stat = await reader.stat()
        assert [lease.holder for lease in stat.leases] == ["me"]
        assert (stat.purged_end, stat.end) == (10, 10)

    with_reader(tmp_path, first)
    with_reader(tmp_path, second)
