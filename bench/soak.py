"""`python -m bench soak`: hours of small and wide windows, slow readers and kills; is memory flat?

Three local nodes and two clients. `wide` has a publisher at window 1000 and a consumer; each of ten
`small` queues has one at window 1, and a consumer; the consumer of `slow` takes some messages and
then leaves the rest waiting for a while, again and again. Every `--kill-s` a node dies and comes
back a moment later. The nodes take turns, but for the first one, which lives as long as the run:
only of a long life can be said that its memory is flat.

After a warm-up (a quarter of the time) a line is laid through the first node's resident memory, by
least squares. The run fails if that line rises by more than `--rise-max` of its beginning; if a
node logs a fault; or if a publisher or consumer ends. The picture has each node's memory above,
the confirmed and consumed messages below, and the kills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import linear_regression
from typing import Any

import matplotlib
from rich.console import Console

import ringmq
from bench import procs
from bench.comparison import BUILD, RESULTS
from bench.measure import BenchError, machine_facts
from bench.peers.ringmq import NODES, check_logs
from ringmq_base.limits import MIB
from ringmq_node.cli.cluster.local import LocalCluster

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot

WIDE, SLOW = "wide", "slow"
SMALL = tuple(f"small.{number}" for number in range(10))
BODY = bytes(1024)
# Four quarters of the window, each with a pause between: some thousand messages a second.
WIDE_BATCH, WIDE_BATCHES, WIDE_PAUSE_S = 250, 4, 0.2
SMALL_PAUSE_S = 0.02
# The slow reader's messages come at half the rate of its reading, over time.
SLOW_PAUSE_S, SLOW_READ, SLOW_REST_S = 0.05, 400, 10.0
SLOW_PREFETCH = 50
SAMPLE_S = 1.0
DEAD_S = 2.0
DEADLINE_S = 120.0
COLOURS = ("#0b6e4f", "#c8553d", "#e0a458")


@dataclass(frozen=True, slots=True)
class Sample:
    """0 bytes: that node isn't running."""

    at_s: float
    memory_bytes: list[int]
    confirmed: int
    consumed: int


@dataclass(slots=True)
class Course:
    """The run so far; `kills` are moments with the node's place."""

    confirmed: int = 0
    consumed: int = 0
    samples: list[Sample] = field(default_factory=list)
    kills: list[tuple[float, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Line:
    """Through a node's memory: its level at the beginning, and by how much that rises."""

    begin_bytes: float
    rise_bytes: float

    @property
    def rise(self) -> float:
        return self.rise_bytes / self.begin_bytes


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="(60)")
    parser.add_argument("--kill-s", type=float, default=30.0, help="from kill to kill (30)")
    parser.add_argument("--rise-max", type=float, default=0.05, help="share of the memory (0.05)")
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parsed = parser.parse_args(arguments)
    if parsed.minutes <= 0 or parsed.kill_s <= DEAD_S:
        parser.error(f"--minutes is above 0, and --kill-s above {DEAD_S:g}")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=BUILD))
    cluster = LocalCluster.create(folder, nodes=NODES, base_port=0)
    try:
        try:
            course = asyncio.run(_course(cluster, parsed, progress))
        finally:
            cluster.stop()
        check_logs("ringmq", sorted((folder / "logs").glob("*.log")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    line = memory_line(course.samples)
    target = (RESULTS if parsed.save else BUILD) / (parsed.save or "soak")
    result = {"machine": machine_facts(BUILD), "line": asdict(line), **asdict(course)}
    target.with_suffix(".json").write_text(json.dumps(result) + "\n")
    _draw(target.with_suffix(".png"), course)
    progress.print(
        f"{course.confirmed} confirmed, {course.consumed} consumed, {len(course.kills)} kills; the "
        f"first node's memory was {line.begin_bytes / MIB:.1f} MiB after the warm-up, and has "
        f"risen by {line.rise:+.1%} since: {target}.json, {target}.png"
    )
    if line.rise > parsed.rise_max:
        raise BenchError(f"memory rose by {line.rise:.1%}, at most {parsed.rise_max:.1%} is flat")


def memory_line(samples: Sequence[Sample]) -> Line:
    """Of the first node, after the first quarter of the samples."""
    judged = samples[len(samples) // 4 :]
    if len(judged) < 3:
        raise BenchError(f"{len(samples)} looks at the memory are too few for a line")
    times = [each.at_s for each in judged]
    slope, offset = linear_regression(times, [each.memory_bytes[0] for each in judged])
    return Line(offset + slope * times[0], slope * (times[-1] - times[0]))


async def _course(cluster: LocalCluster, parsed: argparse.Namespace, progress: Console) -> Course:
    for each in cluster.nodes:
        cluster.start(each.node)
    await cluster.wait_ready()
    course = Course()
    async with AsyncExitStack() as stack:
        # A connection for the publishers and one for the consumers, as two services would have.
        ours, theirs = [
            await stack.enter_async_context(ringmq.connect(cluster.seeds, deadline_s=DEADLINE_S))
            for _ in range(2)
        ]
        for queue in (WIDE, SLOW, *SMALL):
            await ours.declare_queue(queue)
        await _until(
            parsed.minutes * 60,
            [
                _publish(ours, course, WIDE, WIDE_BATCH, WIDE_BATCHES, WIDE_PAUSE_S),
                *(_publish(ours, course, queue, 1, 1, SMALL_PAUSE_S) for queue in SMALL),
                *(_consume(theirs, course, queue) for queue in (WIDE, *SMALL)),
                _publish(ours, course, SLOW, 1, 1, SLOW_PAUSE_S),
                _consume_slowly(theirs, course),
                _sample(cluster, course),
                _kill(cluster, course, parsed.kill_s, progress),
            ],
        )
        # The nodes that were killed are back before their logs are judged.
        await cluster.wait_ready()
    return course


async def _until(seconds: float, work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Does all of it for so long. A part that ends before ends the rest with its error."""
    tasks = [asyncio.create_task(each) for each in work]
    ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


async def _publish(
    client: ringmq.Client, course: Course, queue: str, batch: int, at_once: int, pause_s: float
) -> None:
    bodies = [BODY] * batch

    async def again_and_again(publisher: ringmq.Publisher) -> None:
        while True:
            await publisher.publish_batch(bodies)
            course.confirmed += batch
            await asyncio.sleep(pause_s)

    async with client.publisher(queue) as publisher:
        await asyncio.gather(*(again_and_again(publisher) for _ in range(at_once)))


async def _consume(client: ringmq.Client, course: Course, queue: str) -> None:
    async with client.consumer(queue) as consumer:
        async for batch in consumer:
            await consumer.ack(batch)
            course.consumed += len(batch)


async def _consume_slowly(client: ringmq.Client, course: Course) -> None:
    async with client.consumer(SLOW, prefetch=SLOW_PREFETCH) as consumer:
        taken = 0
        async for batch in consumer:
            await consumer.ack(batch)
            course.consumed += len(batch)
            taken += len(batch)
            if taken >= SLOW_READ:
                taken = 0
                await asyncio.sleep(SLOW_REST_S)


async def _sample(cluster: LocalCluster, course: Course) -> None:
    began = time.monotonic()
    while True:
        processes = [cluster.process(each.node) for each in cluster.nodes]
        course.samples.append(
            Sample(
                at_s=round(time.monotonic() - began, 3),
                memory_bytes=[
                    procs.tree_use([each.pid]).rss_bytes if each else 0 for each in processes
                ],
                confirmed=course.confirmed,
                consumed=course.consumed,
            )
        )
        await asyncio.sleep(SAMPLE_S)


async def _kill(cluster: LocalCluster, course: Course, every_s: float, progress: Console) -> None:
    for place in cycle(range(1, NODES)):
        await asyncio.sleep(every_s - DEAD_S)
        node = cluster.nodes[place].node
        at_s = course.samples[-1].at_s
        course.kills.append((at_s, place))
        progress.print(f"{at_s:.0f} s, {course.confirmed} confirmed: {node} dies")
        cluster.kill(node)
        try:
            await asyncio.sleep(DEAD_S)
        finally:
            cluster.start(node)


def _draw(path: Path, course: Course) -> None:
    times = [each.at_s for each in course.samples]
    figure, (memory, rate) = pyplot.subplots(2, 1, figsize=(9.5, 6.0), sharex=True)
    for place, colour in enumerate(COLOURS[:NODES]):
        used = [each.memory_bytes[place] / MIB or None for each in course.samples]
        memory.plot(times, used, color=colour, label=f"node {place + 1}")
    for at_s, place in course.kills:
        memory.axvline(at_s, color=COLOURS[place], linewidth=0.5)
    memory.set_ylabel("resident memory, MiB; lines: kills")
    memory.set_ylim(bottom=0)
    memory.legend(fontsize=8, loc="lower right")
    rate.plot(
        times, [each.confirmed for each in course.samples], color=COLOURS[0], label="confirmed"
    )
    rate.plot(times, [each.consumed for each in course.samples], color=COLOURS[1], label="consumed")
    rate.set_ylabel("messages")
    rate.set_xlabel("s")
    rate.legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
