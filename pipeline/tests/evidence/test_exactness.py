"""An ingest from a real cluster to a Delta table, while everything that takes part is killed.

Driver (with all that it has started), executor JVM, Python worker and the queue's master die by
SIGKILL, in an order drawn from a seed. Whoever watches the ingest starts it again, and no more.
`make evidence-pipeline` runs it; `RINGMQ_KILLS`, `RINGMQ_SEED` and
`RINGMQ_MASTER` say how many, which, and where Spark runs: without executors, none is killed.
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

KILLS = int(os.environ.get("RINGMQ_KILLS", "20"))
SEED = int(os.environ.get("RINGMQ_SEED", "10"))
WAIT_S = 600.0
MASTER = os.environ.get("RINGMQ_MASTER", "local-cluster[2,1,512]")
MEMORY = "spark.executor.memory=512m"
# Of the command lines in a driver's session.
MARKS = {"executor": "CoarseGrainedExecutorBackend", "worker": "pyspark.daemon"}
FAULTS = ("driver", "executor", "executor", "worker", "worker", "worker", "node", "node")


class IngestProcess:
    """The ingest in a session of its own: every process that it starts is in it."""

    def __init__(self, folder: Path, endpoints: str) -> None:
        self._folder = folder
        self._endpoints = endpoints
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *more: str) -> list[str]:
        places = ["--to", str(self._folder / "table"), "--checkpoint", str(self._folder / "c")]
        limits = ["maxMessagesPerTrigger=3000", "minPartitions=4", "leaseTtl=5s"]
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
                self.command("--every", "1s", "--master", MASTER, "--conf", MEMORY),
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


async def publish(cluster: Cluster, ended: asyncio.Event) -> int:
    """Numbered bodies, until the end; returns how many were confirmed."""
    count = 0
    async with cluster.client(deadline_s=60) as client, client.publisher("q") as publisher:
        while not ended.is_set():
            await publisher.publish_batch([b"%d" % (count + each) for each in range(200)])
            count += 200
            await asyncio.sleep(0.1)
    return count


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


async def soak(folder: Path) -> None:
    chance = random.Random(SEED)
    table = folder / "table"
    done: Counter[str] = Counter()
    (folder / "nodes").mkdir()
    async with Cluster(folder / "nodes") as cluster:
        async with cluster.client() as client:
            await client.declare_queue("q")
        ingest = IngestProcess(folder, ",".join(cluster.seeds))
        ended = asyncio.Event()
        publishing = asyncio.create_task(publish(cluster, ended))
        try:
            while done.total() < KILLS:
                newer = partial(_is_newer, table, version(table))
                await _until(newer, ingest.keep_running)
                await asyncio.sleep(chance.uniform(0, 2))
                fault = chance.choice(FAULTS)
                done[fault] += await break_something(chance, fault, cluster, ingest)
                print(f"{time.strftime('%X')} {dict(done)} version {version(table)}", flush=True)
            ended.set()
            count = await publishing
            before = version(table)
            await _until(lambda: version(table) > before, ingest.keep_running)
            await ingest.stop()
            once = await asyncio.to_thread(
                subprocess.run, ingest.command("--once"), capture_output=True, timeout=WAIT_S
            )
            assert once.returncode == 0, once.stderr.decode()
            async with cluster.client() as client:
                stat = await client.reader("q").stat()
            _judge(table, count, stat)
            summary = json.loads(once.stdout)
            print(f"{done} starts {ingest.starts} messages {count} last run {summary}")
        finally:
            ended.set()
            publishing.cancel()
            ingest.kill()


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
