"""The leases of a query, while one of its queues doesn't answer."""

from __future__ import annotations

import asyncio
import threading

import pytest
from live_node import LiveNode, wait_until
from pipeline.tests.source.sources import Query

from ringmq.reading.lease import HeldLease


def test_a_queue_without_a_master_costs_no_other_queue_its_lease(
    live: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal waits for a master as long as the lease lasts; those behind it waited, too."""
    live.fill("away a", [b"x"])
    live.fill("away b", [b"x"])
    query = Query(live.address, "", queues="away a,away b", leaseTtl="1s")
    query.trigger()
    away = query.reader._driver.leases._held["away a"][1].calls
    real, back, asked = HeldLease.renew, threading.Event(), threading.Event()

    async def renew(self: HeldLease, *, deadline_s: float | None = None) -> None:
        if self is away:
            asked.set()
            await asyncio.to_thread(back.wait)
        await real(self, deadline_s=deadline_s)

    def until_ms() -> int:
        [lease] = live.stat("away b").leases
        return lease.until_ms

    try:
        with monkeypatch.context() as patch:
            patch.setattr(HeldLease, "renew", renew)
            assert asked.wait(20)
            for _ in range(2):
                before = until_ms()
                wait_until(lambda before=before: until_ms() > before)  # type: ignore[misc]
    finally:
        back.set()
    query.end()
