"""The client's side of the broker's scenarios: it runs in a container, as a program of its own.

    python traffic.py '{"role": "both", "queue": "orders", ...}'        (see `Settings`)

It prints a JSON object per line: how far it is, ten times a second, and at the end its report. Exit
code 1 and an `error` in the last line mean that it didn't come to its end in time, or that the
cluster refused something.

    both      declares the queue, publishes with confirms and consumes until SIGTERM says that it is
              enough (or `count` are published); then all that is confirmed has to come out
    publish   publishes `count` messages as a producer with a name. It goes on where the queue says
              that this producer was, and ends when one isn't confirmed within `confirm_s`
    drain     takes out all that several `publish` runs have put in, at the node `at`

`both` and `drain` end when the ring is whole again, with the digest of each replica. What counts as
lost, duplicated, ... is defined in `ringmq_node.cli.load.tally`; this module has no opinion.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from loops import run

import ringmq
from ringmq import Batch, Publisher, QueueInfo, RingMQError
from ringmq_node.cli.demo.lines import Lines
from ringmq_node.cli.errors import first_error
from ringmq_node.cli.load.tally import Tally
from ringmq_node.cli.load.windowed import WindowedLoad

WINDOW = 1000
PREFETCH = 2000
TELL_EVERY_S = 0.1
POLL_S = 0.05
IDLE_S = 0.2
# Ended by a signal: more than any run publishes.
ENDLESS = 2**40


@dataclass(frozen=True)
class Produced:
    """One producer's published messages, by index of the body, and which of them were confirmed.

    `confirmed` holds (first, last) pairs, counted from the producer's own first body.
    """

    first: int
    count: int
    confirmed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Settings:
    """A client's task, as JSON in its only argument.

    `nodes`: how many replicas make the ring whole. `rate` is messages per second. `produced` is
    what `drain` is to find; the producer of `publish` has one entry of its own.
    """

    role: Literal["both", "publish", "drain"]
    queue: str
    seeds: str
    nodes: int
    deadline_s: float
    rate: float = ENDLESS
    count: int = ENDLESS
    confirm_s: float = 60.0
    producer: str = ""
    first: int = 0
    at: str = ""
    produced: tuple[Produced, ...] = ()

    def argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> "Settings":
        values: dict[str, Any] = json.loads(argument)
        values["produced"] = tuple(
            Produced(p["first"], p["count"], tuple((a, b) for a, b in p["confirmed"]))
            for p in values["produced"]
        )
        return cls(**values)


class Run:
    """One run: the course of a role, and its record at any moment."""

    def __init__(self, client: ringmq.Client, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.enough = asyncio.Event()
        self.published = asyncio.Event()
        self.lines = Lines()
        self.load = WindowedLoad(
            Tally(),
            lambda first, count: self.lines.bodies(settings.first + first, count),
            settings.count,
            stop=self.enough.is_set,
            gate=self._pace,
            on_confirm=self._on_confirm,
        )
        self.facts: dict[str, Any] = {}
        self._began = 0.0
        self._began_at = 0
        self._confirmed_at = 0.0
        self._longest_gap_s = 0.0

    def tell(self, **more: Any) -> None:
        tally = self.load.tally
        numbers = {"confirmed": len(tally.confirmed), "delivered": len(tally.delivered)}
        print(json.dumps({**numbers, **self.facts, **more}), flush=True)

    async def tell_often(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(TELL_EVERY_S)

    # -- publishing --------------------------------------------------------------------------------

    async def publish(self, publisher: Publisher) -> None:
        """Publishes until SIGTERM or `count`; the outcome goes into the facts.

        `confirmed_at`: when the last confirm came; `given_at`: when its messages had been handed to
        the client.
        """
        self._began = self._confirmed_at = time.monotonic()
        self._began_at = self.load.tally.published
        await self.load.publish(publisher, window=WINDOW)
        self.facts |= {
            "published": self.load.tally.published,
            "unconfirmed": self.load.failed,
            "failure": str(self.load.failure or ""),
            "longest_gap_ms": round(self._longest_gap_s * 1000),
        }

    async def _pace(self, published: int) -> None:
        due = self._began + (published - self._began_at) / self.settings.rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _on_confirm(self, messages: int, handed_over: float) -> None:
        now = time.monotonic()
        self._longest_gap_s = max(self._longest_gap_s, now - self._confirmed_at)
        self._confirmed_at = now
        # By the clock of the machine, which the test reads, too.
        self.facts["confirmed_at"] = time.time()
        self.facts["given_at"] = time.time() - (time.perf_counter() - handed_over)

    # -- roles -------------------------------------------------------------------------------------

    async def both(self) -> None:
        await self.client.declare_queue(self.settings.queue, replicas=self.settings.nodes)
        self.facts["master"] = (await self.wait_whole()).master
        async with (
            self.client.publisher(self.settings.queue, window_messages=WINDOW) as publisher,
            asyncio.TaskGroup() as group,
        ):
            consuming = group.create_task(self.consume((self.load.tally,), (0,)))
            await self.publish(publisher)
            self.published.set()
            await consuming
        await self.compare_digests()
        self.judge((self.load.tally,))

    async def publish_only(self) -> None:
        settings = self.settings
        async with self.client.publisher(
            settings.queue,
            window_messages=WINDOW,
            producer_id=settings.producer.encode(),
            deadline_s=settings.confirm_s,
        ) as publisher:
            self.facts["began_at"] = publisher.last_sequence
            self.load.tally.publish(publisher.last_sequence)
            await self.publish(publisher)
        self.facts["ranges"] = list(self.load.tally.confirmed)

    async def drain(self) -> None:
        settings = self.settings
        info = await self.wait_whole()
        if info.master != settings.at:
            await self.client.promote_mirror(settings.queue, settings.at)
        self.facts["drained_at"] = (await self.client.queue(settings.queue)).master
        tallies = [Tally() for _ in settings.produced]
        for tally, produced in zip(tallies, settings.produced, strict=True):
            tally.publish(produced.count)
            for first, last in produced.confirmed:
                tally.confirm(first, last)
        self.published.set()
        await self.consume(tallies, [produced.first for produced in settings.produced])
        await self.compare_digests()
        self.judge(tallies)

    # -- consuming ---------------------------------------------------------------------------------

    async def consume(self, tallies: Sequence[Tally], firsts: Sequence[int]) -> None:
        """Until all is published, all that is confirmed has come, and nothing is left.

        Bodies from `firsts[i]` to the next of these are `tallies[i]`'s; `firsts` rises.
        """
        queue = self.settings.queue
        async with self.client.consumer(queue, prefetch=PREFETCH) as consumer:
            while True:
                batch = await consumer.next_batch(timeout_s=IDLE_S)
                if batch is not None:
                    self._take(batch, tallies, firsts)
                    await consumer.ack(batch)
                elif self.published.is_set() and all(tally.complete for tally in tallies):
                    # A duplicate would be behind the last message: look before leaving.
                    info = await self.client.queue(queue)
                    if info.messages_ready == info.messages_unacknowledged == 0:
                        return

    def _take(self, batch: Batch, tallies: Sequence[Tally], firsts: Sequence[int]) -> None:
        def owner(index: int) -> int:
            return max((i for i, first in enumerate(firsts) if index >= first), default=0)

        for part in batch.parts:
            position = part.first
            for number, found in groupby(self.lines.indexes(part.bodies), owner):
                indexes = [index - firsts[number] for index in found]
                tallies[number].deliver(indexes, position, redelivered=part.redelivered)
                position += len(indexes)

    def judge(self, tallies: Sequence[Tally]) -> None:
        for name in ("lost", "duplicated", "reordered", "redelivered", "unexpected"):
            self.facts[name] = sum(getattr(tally, name) for tally in tallies)
        self.facts["survived"] = sum(len(tally.delivered) for tally in tallies)

    # -- the ring ----------------------------------------------------------------------------------

    async def wait_whole(self) -> QueueInfo:
        """Returns when the ring has all its replicas, synchronised."""
        while True:
            info = await self.client.queue(self.settings.queue)
            self.facts["synchronised"] = sum(replica.synchronised for replica in info.ring)
            if self.facts["synchronised"] == self.settings.nodes:
                return info
            await asyncio.sleep(POLL_S)

    async def compare_digests(self) -> None:
        """A digest is the master's own: so each of them becomes master. The queue is empty."""
        info = await self.wait_whole()
        digests = {info.master: info.digest}
        for replica in info.ring[1:]:
            await self.client.promote_mirror(self.settings.queue, replica.node)
            info = await self.client.queue(self.settings.queue)
            digests[info.master] = info.digest
        self.facts["digests"] = digests


async def _run(settings: Settings) -> int:
    async with ringmq.connect(settings.seeds, deadline_s=settings.confirm_s) as client:
        run = Run(client, settings)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.enough.set)
        telling = asyncio.create_task(run.tell_often())
        roles = {"both": run.both, "publish": run.publish_only, "drain": run.drain}
        error = ""
        try:
            async with asyncio.timeout(settings.deadline_s):
                await roles[settings.role]()
        except TimeoutError:
            error = f"not finished after {settings.deadline_s:g} s"
        except BaseExceptionGroup as group:
            error = f"{first_error(group)!r}"
        except RingMQError as failure:
            error = f"{failure!r}"
        finally:
            telling.cancel()
        if error:
            run.judge((run.load.tally,))
        run.tell(ended=True, error=error)
        return 1 if error else 0


if __name__ == "__main__":
    sys.exit(run(_run(Settings.parse(sys.argv[1]))))
