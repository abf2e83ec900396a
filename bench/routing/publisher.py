"""`python -m bench.routing.publisher SPEC`: publishes, and prints its figures as JSON.

A process of its own, so that its processor time is its own, too. `SPEC` is JSON with the fields of
`Spec`. The window is kept by chunks under way, as in `ringmq bench publish`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop

import ringmq
from ringmq_node.cli.load.bodies import StampedBodies
from ringmq_node.cli.load.tally import Tally
from ringmq_node.cli.load.windowed import WindowedLoad


@dataclass(frozen=True, slots=True)
class Spec:
    """Exactly one of `queue` and `exchange` is given."""

    seeds: list[str]
    count: int
    size_bytes: int
    window: int
    queue: str = ""
    exchange: str | None = None
    key: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    ttl_ms: int | None = None
    priority: int | None = None

    def encode(self) -> str:
        return json.dumps(asdict(self))


class _Attributed:
    """A publisher whose batches all carry the attributes of the case."""

    def __init__(self, publisher: ringmq.Publisher, spec: Spec) -> None:
        self._publisher = publisher
        self._properties = ringmq.Properties(headers=spec.headers) if spec.headers else None
        self._attributes: dict[str, Any] = {}
        if spec.exchange is not None:
            self._attributes["routing_key"] = spec.key
        if spec.ttl_ms is not None:
            self._attributes["ttl_ms"] = spec.ttl_ms
        if spec.priority is not None:
            self._attributes["priority"] = spec.priority

    async def publish_batch(self, bodies: Sequence[bytes], /) -> None:
        await self._publisher.publish_batch(bodies, self._properties, **self._attributes)


async def publish(spec: Spec) -> dict[str, Any]:
    load = WindowedLoad(Tally(), StampedBodies(spec.size_bytes).make, spec.count)
    async with ringmq.connect(spec.seeds) as client:
        window = spec.window
        if spec.exchange is None:
            made = client.publisher(spec.queue, window_messages=window)
        else:
            made = client.publisher(exchange=spec.exchange, window_messages=window)
        async with made as publisher:
            started, cpu_started_s = time.perf_counter(), time.process_time()
            await load.publish(_Attributed(publisher, spec), window=window)
            seconds = time.perf_counter() - started
            client_cpu_s = time.process_time() - cpu_started_s
    confirmed = spec.count - load.failed
    return {
        "seconds": seconds,
        "rate_per_s": confirmed / seconds,
        "acked": confirmed,
        "nacked": load.failed,
        "client_cpu_s": client_cpu_s,
        "failure": str(load.failure or ""),
        **{f"{name}_ms": value for name, value in (load.latencies.summary_ms() or {}).items()},
    }


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(publish(spec))))


if __name__ == "__main__":
    main()
