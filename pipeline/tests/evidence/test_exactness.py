"""An ingest from a real cluster to a Delta table, while everything that takes part is killed.

Driver (with all that it has started), executor JVM, Python worker and the queue's master die by
SIGKILL, equally often, in an order drawn from a seed. Whoever watches the ingest starts it again,
and no more. `make evidence-pipeline` runs it; `RINGMQ_KILLS` and `RINGMQ_SEED` say how many, and
in which order.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import loops
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from nemesis import Cluster
from sparks import evidence
from waiting import until

import ringmq
from ringmq_pipeline.jobs.checkpoints import committed_end

KILLS = int(os.environ.get("RINGMQ_KILLS", "20"))
SEED = int(os.environ.get("RINGMQ_SEED", "10"))
WAIT_S = 600.0
MASTER = "local-cluster[2,1,1024]"
TRIGGER_S = 5.0
# Of the command lines in a driver's session.
MARKS = {"executor": "CoarseGrainedExecutorBackend", "worker": "pyspark.daemon"}
FAULTS = ("driver", "node", *MARKS)
# Published at once, and how often. Spark takes about four times as many.
BATCH, PAUSE_S = 50, 0.1


class IngestProcess:
    """The ingest in a session of its own: every process that it starts is in it."""

    def __init__(self, folder: Path, endpoints: str) -> None:
        self._folder = folder
        self._endpoints = endpoints
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *more: str) -> list[str]:
        places = ["--to", str(self._folder / "table"), "--checkpoint", str(self._folder / "c")]
        limits = ["maxMessagesPerTrigger=10000", "minPartitions=4", "leaseTtl=5s"]
        options = [word for limit in limits for word in ("--option", limit)]
        code = "from ringmq_pipeline.cli import main; main()"
        verb = [sys.executable, "-c", code, "ingest", "--queue", "q", "--quiet"]
        return [*verb, "--endpoints", self._endpoints, *places, *options, *more]

    def keep_running(self) -> None:
        """Starts it if it isn't there."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        with (self._folder / "ingest.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command("--every", f"{TRIGGER_S:g}s", "--master", MASTER),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def of_session(self, mark: str = "") -> list[int]:
        """The processes of the session whose command lines have `mark`."""
        assert self._process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self._process.pid and mark in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def kill(self) -> None:
        """The driver, and all that it has started."""
        assert self._process is not None
        for process in self.of_session():
            _kill(process)
        self._process.wait(30)

    async def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await until(
            lambda: self._process is None or self._process.poll() is not None, within_s=WAIT_S
        )


def _kill(process: int) -> bool:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def version(path: Path) -> int:
    try:
        return DeltaTable(path).version()
    except TableNotFoundError:
        return -1


async def publish(cluster: Cluster, ended: asyncio.Event, count: int = 0) -> int:
    """Bodies numbered from `count` on, until the end; returns how many are confirmed then."""
    async with cluster.client(deadline_s=60) as client, client.publisher("q") as publisher:
        while True:
            await publisher.publish_batch([b"%d" % (count + each) for each in range(BATCH)])
            count += BATCH
            if ended.is_set():
                return count
            await asyncio.sleep(PAUSE_S)


async def is_drained(cluster: Cluster) -> bool:
    async with cluster.client() as client:
        return (await client.reader("q").stat()).messages == 0


async def break_something(
    chance: random.Random, fault: str, cluster: Cluster, ingest: IngestProcess
) -> bool:
    if fault == "node":
        master = await cluster.master_of("q")
        cluster.kill(master)
        await asyncio.sleep(chance.uniform(0, 3))
        await cluster.restart(master)
        await cluster.wait_synchronised("q")
        return True
    if fault == "driver":
        ingest.kill()
        return True
    found = ingest.of_session(MARKS[fault])
    return bool(found) and _kill(chance.choice(found))


def drawn_faults(chance: random.Random) -> list[str]:
    faults = [FAULTS[number % len(FAULTS)] for number in range(KILLS)]
    chance.shuffle(faults)
    return faults


async def soak(folder: Path) -> None:
    chance = random.Random(SEED)
    table = folder / "table"
    done: Counter[str] = Counter()
    (folder / "nodes").mkdir()
    async with Cluster(folder / "nodes") as cluster:
        await cluster.declare("q")
        ingest = IngestProcess(folder, ",".join(cluster.seeds))
        ended = asyncio.Event()
        publishing = asyncio.create_task(publish(cluster, ended))
        try:
            for fault in drawn_faults(chance):
                await _until(partial(_is_newer, table, version(table)), ingest.keep_running)
                await asyncio.sleep(chance.uniform(0, TRIGGER_S))
                while not await break_something(chance, fault, cluster, ingest):
                    ingest.keep_running()
                    await asyncio.sleep(0.1)
                done[fault] += 1
                print(f"{time.strftime('%X')} {dict(done)} version {version(table)}", flush=True)
            ended.set()
            count = await publishing
            await _until(lambda: last_position(folder) >= count, ingest.keep_running)
            idle_since = time.monotonic()
            await until(partial(is_drained, cluster), within_s=WAIT_S)
            drained_s = time.monotonic() - idle_since
            await ingest.stop()
            count = await publish(cluster, ended, count)
            once = await asyncio.to_thread(
                subprocess.run, ingest.command("--once"), capture_output=True, timeout=WAIT_S
            )
            assert once.returncode == 0, once.stderr.decode()
            async with cluster.client() as client:
                stat = await client.reader("q").stat()
            _judge(table, count, stat)
            summary = json.loads(once.stdout)
            print(f"{done} starts {ingest.starts} messages {count} last run {summary}")
            print(f"drained {drained_s:.2f} s after the last commit, a trigger every {TRIGGER_S} s")
            assert drained_s < 2 * TRIGGER_S
        finally:
            ended.set()
            publishing.cancel()
            ingest.kill()


def last_position(folder: Path) -> int:
    """Behind the newest batch that Spark has committed."""
    return sum(at.position for at in committed_end(folder / "c").values())


def _is_newer(table: Path, than: int) -> bool:
    return version(table) > than


async def _until(condition: Callable[[], bool], each_time: Callable[[], None]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the table doesn't grow any more"
        each_time()
        await asyncio.sleep(0.2)


def _judge(path: Path, count: int, stat: ringmq.PositionStat) -> None:
    """Every confirmed message is one row, all files can be read, and the queue is empty."""
    files = DeltaTable(path).file_uris()
    rows = [
        row
        for file in files
        for row in pyarrow.parquet.read_table(file).select(["position", "body"]).to_pylist()
    ]
    assert len({row["position"] for row in rows}) == len(rows)
    assert sorted(int(row["body"]) for row in rows) == [*range(count)]
    assert (stat.messages, stat.leases) == (0, ())


@evidence
@pytest.mark.slow
@pytest.mark.cluster
def test_no_row_is_lost_or_double_whatever_is_killed(tmp_path: Path) -> None:
    loops.run(soak(tmp_path))
