"""A mirror that lacks a hundredth of a long queue comes back: what moves, and who waits meanwhile.

The mirror is killed when the queue is full and everybody has all of it. A hundredth is published
without it. Then it is started, under a slow publisher, and takes part again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from bench.failover.load import Load
from bench.failover.rounds import CALM_S, SERVED_S_MAX, SETTLE_S_MAX, Pace
from bench.failover.systems import CATCH_UP, System
from bench.failover.tally import CatchUpSeen, longest_gap_s
from bench.measure import BenchError

MISSED_SHARE = 100
# Slow, so that its bytes are few among those that the mirror takes in.
RATE_PER_S = 100


async def catch_up(
    system: System, kind: str, messages: int, pace: Pace, say: Callable[[str], None]
) -> CatchUpSeen:
    missed = messages // MISSED_SHARE
    say(f"{kind}: fills a queue with {messages} messages")
    await system.declare(kind, CATCH_UP)
    await system.fill(kind, CATCH_UP, messages - missed, pace.size_bytes)
    master = (await system.wait_whole(CATCH_UP, [kind]))[kind]
    victim = system.mirror(master)
    system.kill(victim)
    await system.fill(kind, CATCH_UP, missed, pace.size_bytes)
    slow = replace(pace, rate_per_s=RATE_PER_S)
    load = Load(
        system.sender(kind), CATCH_UP, master, first=messages,
        rate_per_s=slow.rate_per_s, window=slow.window, size_bytes=slow.size_bytes,
    )  # fmt: skip
    async with load:
        if not await load.serves(within_s=SERVED_S_MAX):
            raise BenchError(f"{kind}: no confirm within {SERVED_S_MAX:g} s without a mirror")
        await asyncio.sleep(CALM_S)
        published_before = load.published_bytes
        received_before = system.received_bytes(victim)
        began_at = time.monotonic()
        await system.bring_back(victim)
        await system.wait_whole(CATCH_UP, [kind])
        whole_at = time.monotonic()
        received = system.received_bytes(victim) - received_before
        published = load.published_bytes - published_before
        await load.serves(within_s=SERVED_S_MAX)
        ended_at = time.monotonic()
        await load.settle(within_s=SETTLE_S_MAX)
    await system.delete(kind, CATCH_UP)
    seen = CatchUpSeen(
        system=kind,
        messages=messages,
        missed=missed,
        size_bytes=pace.size_bytes,
        received_bytes=received,
        published_bytes=published,
        synchronised_s=whole_at - began_at,
        gap_s=longest_gap_s(load.confirmed_at, began_at, ended_at),
    )
    say(
        f"{kind}: {received / 2**20:.1f} MiB to the mirror, synchronised after "
        f"{seen.synchronised_s:.1f} s, {seen.gap_s:.2f} s without confirms"
    )
    return seen
