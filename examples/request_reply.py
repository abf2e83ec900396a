"""Calls over queues: the client's reply queue is its own, and answers find their calls by ids."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from nodes import SEEDS

import ringmq

REQUESTS = "example.square"
# A call that nobody takes within this time is of no use to its client any more.
PATIENCE_MS = 10_000


async def serve(client: ringmq.Client) -> None:
    # To the default exchange, where each queue is bound by its name: one publisher for all replies.
    async with (
        client.consumer(REQUESTS, prefetch=10) as consumer,
        client.publisher(exchange="") as replies,
    ):
        async for batch in consumer:
            for request in batch:
                answer = str(int(request.body) ** 2).encode()
                told = ringmq.Properties(correlation_id=request.properties.correlation_id)
                await replies.publish(answer, told, routing_key=request.properties.reply_to)
                # After the reply: a server that dies in between is asked again.
                await consumer.ack(request)


async def call_all(client: ringmq.Client, numbers: list[int]) -> dict[int, int]:
    reply_to = (await client.declare_queue(exclusive=True)).queue
    called: dict[str, int] = {}
    squares: dict[int, int] = {}
    async with client.publisher(REQUESTS) as requests, client.consumer(reply_to) as replies:
        for number in numbers:
            call = uuid4().hex
            called[call] = number
            asked = ringmq.Properties(correlation_id=call, reply_to=reply_to)
            await requests.publish(str(number).encode(), asked, ttl_ms=PATIENCE_MS)
        while called:
            for reply in await anext(replies):
                # An answer may come twice: only the first one finds its call.
                number = called.pop(reply.properties.correlation_id, -1)
                if number >= 0:
                    squares[number] = int(reply.body)
                await replies.ack(reply)
    return squares


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await client.declare_queue(REQUESTS)
        server = asyncio.create_task(serve(client))
        try:
            squares = await call_all(client, [2, 3, 12])
            print(", ".join(f"{number} squared is {squares[number]}" for number in squares))
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            await client.delete_queue(REQUESTS)


if __name__ == "__main__":
    asyncio.run(main())
