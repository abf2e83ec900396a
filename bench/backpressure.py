"""`python -m bench backpressure`: memory over time while something doesn't keep up.

A publisher at full speed fills one queue of three local nodes; beside it a publisher of another
queue, without a replica on the slow mirror, goes at a fixed rate. One after the other: nothing is
in the way; a consumer acknowledges nothing; nobody consumes; a mirror has its processor for a fifth
of the time only (it is stopped for so long at a time that the publisher is told); the disk has less
room than the limit. The picture has the resident memory of each
node above, and what both publishers have confirmed below; the time in which the first one was told
that it is blocked is shaded. The run fails if a node's memory passes its watermark by a tenth, if
the publisher isn't told of the slow mirror or, within 3 s, of the full disk, or if one queue's
backlog holds the other queue's publisher: an alarm alone may.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import matplotlib
from rich.console import Console

import ringmq
from bench import procs
from bench.comparison import BUILD, RESULTS
from bench.measure import BenchError, machine_facts
from bench.peers.ringmq import NODES, check_logs
from ringmq_base.limits import GIB, MIB
from ringmq_node.cli.cluster.local import LocalCluster

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot

SAMPLE_S = 0.2
BODY = bytes(4096)
WINDOW_BYTES = 64 * MIB
OTHER_PAUSE_S = 0.02
# A node tells a publisher a moment after it holds it. A stop is longer than that, and far shorter
# than the time after which a mirror that takes nothing is put out of the ring.
MIRROR_STOPS_S = 2.0
MIRROR_RUNS_S = 0.5
# Full long before the mirror runs again.
RING_BYTES = 4 * MIB
# The least room; half of what there is has to stay free, and a file takes the other half.
ROOM_BYTES_MIN = 4 * GIB
WATERMARK_BYTES = 384 * MIB
FREE_LIMIT = "RINGMQ_DISK_FREE_LIMIT"
FREE, STOPPED_CONSUMER, NO_CONSUMER = "free", "consumer stopped", "nobody consumes"
SLOW_MIRROR, FULL_DISK, FREE_AGAIN = "slow mirror", "full disk", "free again"
PHASES = (FREE, STOPPED_CONSUMER, NO_CONSUMER, SLOW_MIRROR, FULL_DISK, FREE_AGAIN)
# The alarm of the full disk holds all publishers, and ends in the phase behind it.
ALARMED = (FULL_DISK, FREE_AGAIN)
OTHER_GAP_S_MAX = 1.0
# From the file that takes the room to the word to the publisher: a node looks each second.
DISK_TOLD_S_MAX = 3.0
OF_A_SLOW_MIRROR = {
    ringmq.BlockReason.RING_FULL.text,
    ringmq.BlockReason.PUBLISH_BUDGET.text,
    ringmq.BlockReason.UNSYNCED.text,
}
STOPPED_PREFETCH = 100
COLOURS = ("#0b6e4f", "#c8553d", "#e0a458")


@dataclass(slots=True)
class Sample:
    """`blocked`: the reasons that the first publisher was told, and hasn't been told the end of.
    `other_gap_s`: the longest time between two confirms of the other queue that has ended since
    the last sample, or goes on."""

    at_s: float
    phase: str
    memory_bytes: list[int]
    confirmed: int
    other_confirmed: int
    other_gap_s: float
    blocked: list[str]


@dataclass(slots=True)
class Course:
    """What both publishers have come to so far."""

    confirmed: int = 0
    other_confirmed: int = 0
    blocked: tuple[ringmq.BlockReason, ...] = ()
    phase: str = PHASES[0]
    samples: list[Sample] = field(default_factory=list)
    other_confirmed_at_s: float = field(default_factory=time.monotonic)
    other_gap_s: float = 0.0

    def other_confirms(self) -> None:
        self.other_gap_s = self.longest_gap_s()
        self.other_confirmed_at_s = time.monotonic()
        self.other_confirmed += 1

    def longest_gap_s(self) -> float:
        """Of those since `other_gap_s` was 0."""
        return max(self.other_gap_s, time.monotonic() - self.other_confirmed_at_s)

    def on_blocked(self, reasons: tuple[ringmq.BlockReason, ...]) -> None:
        self.blocked = reasons

    def on_unblocked(self) -> None:
        self.blocked = ()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench backpressure", description=__doc__)
    parser.add_argument("--phase-s", type=float, default=15.0, help="of each phase (15)")
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parsed = parser.parse_args(arguments)
    if parsed.phase_s <= 0:
        parser.error("--phase-s is above 0")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="backpressure-", dir=BUILD))
    limit = _room_bytes(folder) // 2
    if limit < ROOM_BYTES_MIN // 2:
        raise BenchError(f"{folder} has less than {ROOM_BYTES_MIN} bytes of room")
    # The nodes take them from the environment.
    os.environ[FREE_LIMIT] = str(limit)
    os.environ["RINGMQ_MEMORY_WATERMARK"] = f"{WATERMARK_BYTES}B"
    os.environ["RINGMQ_RING_BYTES_MAX"] = str(RING_BYTES)
    cluster = LocalCluster.create(folder, nodes=NODES, base_port=0)
    try:
        try:
            course = asyncio.run(_course(cluster, parsed.phase_s, progress))
        finally:
            cluster.stop()
        check_logs("ringmq", sorted((folder / "logs").glob("*.log")))
    finally:
        if parsed.save is None:
            shutil.rmtree(folder, ignore_errors=True)
    name = parsed.save or "backpressure"
    target = (RESULTS if parsed.save else BUILD) / name
    result = {"machine": machine_facts(BUILD), "samples": [asdict(each) for each in course.samples]}
    target.with_suffix(".json").write_text(json.dumps(result) + "\n")
    _draw(target.with_suffix(".png"), course.samples)
    progress.print(f"{target}.json, {target}.png")
    if parsed.save:
        shutil.rmtree(folder, ignore_errors=True)
    judge(course.samples)


def judge(samples: Sequence[Sample]) -> None:
    most = max(max(each.memory_bytes) for each in samples)
    if most > WATERMARK_BYTES * 1.1:
        raise BenchError(f"a node had {most} bytes of memory, the watermark is {WATERMARK_BYTES}")
    told = {phase: _told(samples, phase) for phase in PHASES}
    _judge_disk([each for each in samples if each.phase == FULL_DISK])
    if not told[SLOW_MIRROR] & OF_A_SLOW_MIRROR:
        raise BenchError(f"of the slow mirror the publisher was told {sorted(told[SLOW_MIRROR])}")
    for each in samples:
        if each.phase not in ALARMED and each.other_gap_s > OTHER_GAP_S_MAX:
            raise BenchError(
                f"{each.phase}: the other queue's publisher had no confirm for"
                f" {each.other_gap_s:.2f} s, at most {OTHER_GAP_S_MAX} s are allowed"
            )


def _judge_disk(samples: Sequence[Sample]) -> None:
    disk = ringmq.BlockReason.DISK.text
    at_s = next((each.at_s for each in samples if disk in each.blocked), None)
    if at_s is None:
        raise BenchError("the publisher was never told that the disk is full")
    if at_s > samples[0].at_s + DISK_TOLD_S_MAX:
        raise BenchError(
            f"the publisher was told after {at_s - samples[0].at_s:.1f} s that the disk is full,"
            f" at most {DISK_TOLD_S_MAX} s are allowed"
        )


def _told(samples: Sequence[Sample], phase: str) -> set[str]:
    return {reason for each in samples if each.phase == phase for reason in each.blocked}


async def _course(cluster: LocalCluster, phase_s: float, progress: Console) -> Course:
    pids = [cluster.start(each.node).pid for each in cluster.nodes]
    await cluster.wait_ready()
    course = Course()
    async with ringmq.connect(cluster.seeds, deadline_s=60.0) as client:
        info = await _declared(client, "first", NODES)
        other = (await _declared(client, "other", 1)).master
        names = [each.node for each in cluster.nodes]
        mirror = names.index(next(r.node for r in info.ring[1:] if r.node != other))
        work = [
            asyncio.create_task(_publish_all(client, course)),
            asyncio.create_task(_publish_other(client, course)),
            asyncio.create_task(_sample(pids, course)),
        ]
        try:
            await _phases(client, course, cluster.directory, pids[mirror], phase_s, progress)
        finally:
            for task in work:
                task.cancel()
            ended = await asyncio.gather(*work, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each
    return course


async def _declared(client: ringmq.Client, queue: str, replicas: int) -> ringmq.QueueInfo:
    info = await client.declare_queue(queue, replicas, min_insync=min(2, replicas))
    while len(info.ring) < replicas or not all(each.synchronised for each in info.ring):
        await asyncio.sleep(SAMPLE_S)
        info = await client.queue(queue)
    return info


async def _phases(
    client: ringmq.Client,
    course: Course,
    folder: Path,
    mirror: int,
    phase_s: float,
    progress: Console,
) -> None:
    for phase in PHASES:
        course.phase = phase
        progress.print(f"{phase}: {course.confirmed} confirmed")
        if phase in (FREE, STOPPED_CONSUMER):
            async with asyncio.TaskGroup() as tasks:
                consume = _consume if phase == FREE else _hold
                consuming = tasks.create_task(consume(client))
                await asyncio.sleep(phase_s)
                consuming.cancel()
        elif phase == SLOW_MIRROR:
            await _slow(mirror, phase_s)
        elif phase == FULL_DISK:
            _fill(folder / "filler", _room_bytes(folder) - int(os.environ[FREE_LIMIT]) + 256 * MIB)
            await asyncio.sleep(phase_s)
            (folder / "filler").unlink()
        else:
            await asyncio.sleep(phase_s)


def _room_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _fill(path: Path, size_bytes: int) -> None:
    with open(path, "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, size_bytes)


async def _slow(pid: int, phase_s: float) -> None:
    end = time.monotonic() + phase_s
    try:
        while time.monotonic() < end:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(MIRROR_STOPS_S)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(MIRROR_RUNS_S)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _consume(client: ringmq.Client) -> None:
    async with client.consumer("first") as consumer:
        async for batch in consumer:
            await consumer.ack(batch)


async def _hold(client: ringmq.Client) -> None:
    """A consumer that takes what it may, and acknowledges nothing."""
    async with client.consumer("first", prefetch=STOPPED_PREFETCH) as consumer:
        async for _ in consumer:
            continue


async def _publish_all(client: ringmq.Client, course: Course) -> None:
    async with client.publisher(
        "first",
        window_messages=100_000,
        window_bytes=WINDOW_BYTES,
        deadline_s=600.0,
        on_blocked=course.on_blocked,
        on_unblocked=course.on_unblocked,
    ) as publisher:

        def confirmed(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                course.confirmed += 1

        while True:
            (await publisher.submit(BODY)).add_done_callback(confirmed)


async def _publish_other(client: ringmq.Client, course: Course) -> None:
    async with client.publisher("other", deadline_s=600.0) as publisher:
        while True:
            await publisher.publish(BODY)
            course.other_confirms()
            await asyncio.sleep(OTHER_PAUSE_S)


async def _sample(pids: Sequence[int], course: Course) -> None:
    began = time.monotonic()
    while True:
        course.samples.append(
            Sample(
                at_s=round(time.monotonic() - began, 3),
                phase=course.phase,
                memory_bytes=[procs.tree_use([pid]).rss_bytes for pid in pids],
                confirmed=course.confirmed,
                other_confirmed=course.other_confirmed,
                other_gap_s=round(course.longest_gap_s(), 3),
                blocked=[reason.text for reason in course.blocked],
            )
        )
        course.other_gap_s = 0.0
        await asyncio.sleep(SAMPLE_S)


def _draw(path: Path, samples: Sequence[Sample]) -> None:
    times = [each.at_s for each in samples]
    figure, (memory, rate) = pyplot.subplots(2, 1, figsize=(9.5, 6.0), sharex=True)
    for node, colour in enumerate(COLOURS[:NODES]):
        used = [each.memory_bytes[node] / MIB for each in samples]
        memory.plot(times, used, color=colour, label=f"node {node + 1}")
    memory.axhline(WATERMARK_BYTES / MIB, color="#8d99ae", linestyle="--", label="watermark")
    memory.set_ylabel("resident memory, MiB")
    memory.legend(fontsize=8, loc="upper left")
    rate.plot(times, [each.confirmed for each in samples], color=COLOURS[0], label="first")
    rate.set_ylabel("confirmed, first queue")
    other = rate.twinx()
    other.plot(times, [each.other_confirmed for each in samples], color=COLOURS[1], label="other")
    other.set_ylabel("confirmed, other queue")
    rate.set_xlabel("s")
    for axes in (memory, rate):
        for before, after in pairwise(samples):
            if after.blocked:
                axes.axvspan(before.at_s, after.at_s, color="#8d99ae", alpha=0.3, linewidth=0)
    for phase in PHASES:
        begin = next((each.at_s for each in samples if each.phase == phase), None)
        if begin is not None:
            memory.axvline(begin, color="#8d99ae", linewidth=0.5)
            memory.text(begin, memory.get_ylim()[1], f" {phase}", fontsize=8, va="bottom")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
