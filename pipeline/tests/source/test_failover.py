"""The source while the queue's master is killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nemesis import Cluster, scenario
from nemesis.oracle import body_of
from pipeline.tests.source.sources import Query, options_for, rows_of

from pyspark_ringmq.batch import BatchReader
from ringmq_pipeline.offsets import DataLossError
from ringmq_pipeline.options import parse

COUNT = 3000
# So that a range takes many pieces: the master is killed after the first batch of them.
BODY_BYTES = 4000


async def filled(cluster: Cluster, count: int = COUNT) -> list[bytes]:
    bodies = [body_of("p", number, BODY_BYTES) for number in range(count)]
    async with cluster.client(deadline_s=30) as client, client.publisher("q") as publisher:
        await publisher.publish_batch(bodies)
    return bodies


@scenario(deadline_s=90)
async def test_a_task_reads_on_at_the_next_master(cluster: Cluster) -> None:
    bodies = await filled(cluster)
    endpoints = ",".join(cluster.addresses.values())
    reader = BatchReader(parse(options_for(endpoints, "q", requestTimeout="60s")))
    [partition] = await asyncio.to_thread(reader.partitions)
    batches = reader.read(partition)
    first = await asyncio.to_thread(next, batches)
    assert first.num_rows < COUNT
    cluster.kill(await cluster.master_of("q"))
    rest = await asyncio.to_thread(list, batches)
    rows: list[dict[str, Any]] = [row for each in (first, *rest) for row in each.to_pylist()]
    assert [row["body"] for row in rows] == bodies
    # A task that is run again gets the same rows.
    again = await asyncio.to_thread(rows_of, reader, [partition])
    assert [(row["position"], row["body"]) for row in again] == [*enumerate(bodies)]


@scenario(deadline_s=90)
async def test_a_stream_goes_on_at_the_next_master(cluster: Cluster) -> None:
    """Its lease, its offsets and what it has acknowledged are as they were."""
    bodies = await filled(cluster)
    endpoints = ",".join(cluster.addresses.values())
    query = Query(endpoints, "q", requestTimeout="60s", maxMessagesPerTrigger="1000")
    rows = await asyncio.to_thread(query.trigger)
    rows += await asyncio.to_thread(query.trigger)
    cluster.kill(await cluster.master_of("q"))
    while batch := await asyncio.to_thread(query.trigger):
        rows += batch
    assert [row["body"] for row in rows] == bodies
    async with cluster.client(deadline_s=30) as client:
        stat = await client.reader("q").stat()
        assert (stat.messages, stat.acked_end) == (0, COUNT)
    await asyncio.to_thread(query.end)


@scenario(deadline_s=120)
async def test_a_loss_that_was_accepted_is_told_with_the_range(cluster: Cluster) -> None:
    """The positions that a query has read, and those of its last batch, belong to other messages
    from then on: neither the next batch nor one that is run again reads these in silence."""
    cluster.expect_log("has accepted that confirmed messages may be lost")
    await filled(cluster, 50)
    behind = (await cluster.mirrors_of("q"))[-1]
    cluster.kill(behind)
    await filled(cluster, 30)
    endpoints = ",".join(cluster.addresses.values())
    # The lease is lost as well: a renewal, at a third of its time, would say that first.
    limits = {"maxMessagesPerTrigger": "60", "requestTimeout": "60s", "leaseHolder": "the query"}
    query = Query(endpoints, "q", **limits, leaseTtl="240s")
    assert len(await asyncio.to_thread(query.trigger)) == 60
    begin = query.at
    assert len(await asyncio.to_thread(query.trigger)) == 20
    assert begin is not None
    assert query.at is not None
    lost = cluster.others(behind)
    cluster.kill(*lost)
    await cluster.start(behind)
    async with cluster.client() as client:
        await client.promote_mirror(
            "q", behind, accept_loss=True, operator="on call", deadline_s=30
        )
    await cluster.start(*lost)
    await cluster.wait_synchronised("q", within_s=40)
    # Other messages at positions that the query has read, and behind them.
    await filled(cluster, 100)

    again = await asyncio.to_thread(query.reader.partitions, begin, query.at)
    with pytest.raises(DataLossError, match=r"positions 60 to 79 .*accepted a loss"):
        await asyncio.to_thread(rows_of, query.reader, again)
    told = (
        r"positions from 80 on can't be read.*an operator has accepted a loss \(epoch \d+, not 0\)"
    )
    with pytest.raises(DataLossError, match=told):
        await asyncio.to_thread(query.trigger)
    await asyncio.to_thread(query.end)
    # One that may skip goes over to the other numbering, and reads nothing that it has read.
    lax = Query(endpoints, "q", requestTimeout="60s", failOnDataLoss="false")
    lax.at = query.at
    assert await asyncio.to_thread(lax.trigger) == []
    positions = [row["position"] for row in await asyncio.to_thread(lax.trigger)]
    assert positions == [*range(50, 150)]
    await asyncio.to_thread(lax.end)
