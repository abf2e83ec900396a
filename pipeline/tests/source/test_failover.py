"""The source while the queue's master is killed."""

from __future__ import annotations

import asyncio
from typing import Any

from nemesis import Cluster, scenario
from nemesis.oracle import body_of
from pipeline.tests.source.sources import Query, options_for, rows_of

from pyspark_ringmq.batch import BatchReader
from ringmq_pipeline.options import parse

COUNT = 3000
# So that a range takes many pieces: the master is killed after the first batch of them.
BODY_BYTES = 4000


async def filled(cluster: Cluster) -> list[bytes]:
    bodies = [body_of("p", number, BODY_BYTES) for number in range(COUNT)]
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
