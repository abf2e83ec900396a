"""Valid calls of strangers, broken by chance, against the port of a node that serves others.

Each seed is one connection: calls with messages of ours and with nonsense, as a client would frame
them; then bytes of it are changed, and frames are added. The node goes on, its log has no error,
its memory stays within a bound, and a client beside it has its confirms in time.
`RINGMQ_FUZZ_SEEDS=4711:4712` plays the seeds that it says.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from google.protobuf.message import Message
from loops import run
from nemesis.attack import Attacked, attacked, connected
from waiting import until
from wire.tests.fuzz_wire import random_frame

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import MIB
from ringmq_wire import WireOptions, frames
from ringmq_wire.connection import Connection

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

SEEDS = os.environ.get(
    "RINGMQ_FUZZ_SEEDS", "0:20000" if os.environ.get("RINGMQ_EXHAUSTIVE") else "0:200"
)
# So many connections at once.
TOGETHER = 10
# After its last byte a connection is left to the node for so long.
LINGERS_S = 0.05
DEADLINE_S = 3600.0
METHODS = ["Publish", "Consume", "GetQueue", "GetMessages", "LocateQueue", "Connect", "Nothing"]


def random_messages(rng: random.Random, method: str) -> list[bytes]:
    queue = rng.choice(["q", "q", "q", "nothing", ""])
    number = rng.choice([0, 1, 1, 2, 2**31, 2**63])
    made: list[Message]
    match method:
        case "Publish":
            opening = broker.PublishOpen(queue=queue, producer_id=rng.randbytes(rng.choice([0, 8])))
            bodies = [rng.randbytes(rng.choice([0, 1, 100, 5_000])) for _ in range(3)]
            batch = broker.PublishBatch(first_sequence=number, bodies=bodies)
            made = [broker.PublishRequest(open=opening), broker.PublishRequest(batch=batch)]
        case "Consume":
            asked = broker.ConsumeOpen(queue=queue, prefetch_messages=rng.choice([0, 1, 50]))
            acks = [common.Range(first=rng.randint(0, 5), last=rng.randint(0, 9))]
            settle = broker.Settle(ack=acks, requeue=acks if rng.random() < 0.2 else [])
            made = [broker.ConsumeRequest(open=asked), broker.ConsumeRequest(settle=settle)]
        case "GetMessages":
            mode = rng.choice([broker.GET_MODE_PEEK, broker.GET_MODE_REMOVE])
            made = [broker.GetMessagesRequest(queue=queue, messages_max=number % 2**32, mode=mode)]
        case "Connect":
            made = [broker.ConnectRequest(open=broker.ConnectOpen())]
        case _:
            made = [broker.GetQueueRequest(queue=queue)]
    messages = [message.SerializeToString() for message in made]
    for at, message in enumerate(messages):
        if rng.random() < 0.3:
            messages[at] = changed(rng, message)
    return messages if rng.random() < 0.9 else messages[::-1]


def changed(rng: random.Random, data: bytes) -> bytes:
    """Some bytes are others, are gone, or come twice."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randint(0, len(out))
        match rng.randint(0, 3):
            case 0 if at < len(out):
                out[at] = rng.randint(0, 255)
            case 1:
                del out[at : at + rng.choice([1, 4, 9, 60])]
            case 2:
                out[at:at] = out[at : at + rng.choice([1, 9, 60])]
            case _:
                out[at:at] = rng.randbytes(rng.choice([1, 4, 30]))
    return bytes(out)


def connection_of(seed: int) -> list[bytes]:
    """What this seed sends, in the pieces in which it does."""
    rng = random.Random(seed)
    client = Connection(client=True, options=WireOptions(), now=0.0)
    pieces = [b"".join(client.take(1 << 20)), frames.frame(frames.SETTINGS, frames.ACK, 0)]
    for _ in range(rng.randint(1, 6)):
        method = rng.choice(METHODS)
        stream = client.calls.open(f"/ringmq.v1.Broker/{method}", "x", now=0.0)
        for message in random_messages(rng, method):
            client.calls.send(stream, [message])
            pieces.append(b"".join(client.take(1 << 20)))
        if rng.random() < 0.3:
            client.calls.cancel(stream, 0.0)
        elif rng.random() < 0.5:
            client.calls.half_close(stream)
        pieces.append(b"".join(client.take(1 << 20)))
        if rng.random() < 0.3:
            pieces.append(random_frame(rng))
    # The beginning stays: without it nothing behind it is looked at.
    for at in range(1 if rng.random() < 0.9 else 0, len(pieces)):
        if rng.random() < 0.1:
            pieces[at] = changed(rng, pieces[at])
    if rng.random() < 0.2:
        pieces.append(random_frame(rng) * rng.choice([10, 2_000]))
    return pieces


async def play(node: Attacked, seed: int) -> None:
    peer = await connected(node.address)
    for piece in connection_of(seed):
        if peer.lost.done():
            return
        peer.transport.write(piece)
        await asyncio.sleep(0)
    done, _ = await asyncio.wait([peer.lost], timeout=LINGERS_S)
    if not done:
        peer.transport.abort()
        await peer.lost


def test_no_connection_harms_a_node_or_its_other_clients(tmp_path: Path) -> None:
    first, last = map(int, SEEDS.split(":"))

    async def story() -> None:
        bounds = {"queue_memory_bytes_max": 4 * MIB, "buffer_bytes_max": 16 * MIB}
        async with attacked(tmp_path, within_s=DEADLINE_S, **bounds) as node:
            for seed in range(first, last, TOGETHER):
                seeds = range(seed, min(seed + TOGETHER, last))
                what = f"RINGMQ_FUZZ_SEEDS={seeds.start}:{seeds.stop}"
                confirms = node.calm.confirms
                await asyncio.gather(*(play(node, each) for each in seeds))
                await until(lambda before=confirms: node.calm.confirms > before, what)
                node.look()
                node.assert_untouched(what)

    run(story())


def test_a_seed_is_always_the_same_connection() -> None:
    assert connection_of(7) == connection_of(7)
    assert connection_of(7) != connection_of(8)
