"""Ingest and replay on a standalone Spark cluster: a master and two workers, each a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from live_node import LiveNode, wait_until
from sparks import evidence

from ringmq_node.cli.cluster.local import free_ports
from ringmq_pipeline.session import LOOPBACK

DAEMON = Path(__file__).parents[3] / "deploy" / "spark_daemon.py"
WORKERS = 2
COUNT = 20_000
START_S = 60.0
VERB_S = 300.0
VERB = "from ringmq_pipeline.cli import main; main()"


@contextmanager
def spark_process(log: Path, kind: str, *words: str) -> Iterator[None]:
    """One of Spark's own daemons, as a container starts it, in a session of its own."""
    command = [sys.executable, str(DAEMON), kind, "--host", LOOPBACK, *words]
    environment = os.environ | {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env=environment, start_new_session=True
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The master's URL, once both workers are with it."""
    port, page = free_ports(2)
    url = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        places = ("--port", str(port), "--webui-port", str(page))
        log = folder / "master.log"
        stack.enter_context(spark_process(log, "master", *places))
        wait_until(lambda: "New state: ALIVE" in log.read_text(), START_S)
        for number in range(WORKERS):
            words = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
            words += ["--work-dir", str(folder / f"worker{number}"), url]
            stack.enter_context(spark_process(folder / f"{number}.log", "worker", *words))
        wait_until(lambda: log.read_text().count("Registering worker") == WORKERS, START_S)
        yield url


def run_verb(folder: Path, master: str, *words: str) -> dict[str, object]:
    """Its summary. A process of its own: the one of the tests has a session already."""
    conf = [f"spark.driver.host={LOOPBACK}", f"spark.driver.bindAddress={LOOPBACK}"]
    conf += ["spark.executor.memory=512m"]
    settings = [word for each in conf for word in ("--conf", each)]
    done = subprocess.run(
        [sys.executable, "-c", VERB, *words, "--master", master, *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=VERB_S,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return summary


@evidence
@pytest.mark.slow
def test_a_queue_goes_to_a_table_and_back_on_two_workers(live: LiveNode, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(COUNT)]
    live.fill("standalone", bodies)
    live.client.declare_queue("standalone again")
    at = ("--endpoints", live.address)
    table = str(tmp_path / "table")
    with standalone(tmp_path) as master:
        words = ["ingest", "--queue", "standalone", *at, "--to", table]
        words += ["--checkpoint", str(tmp_path / "c"), "--option", "minPartitions=4"]
        ingested = run_verb(tmp_path, master, *words)
        words = ["replay", "--from", table, "--queue", "standalone again", *at]
        replayed = run_verb(tmp_path, master, *words, "--progress", str(tmp_path / "p"))
        for number in range(WORKERS):
            # A folder for each application that had an executor there.
            assert len([*(tmp_path / f"worker{number}").glob("app-*")]) == 2
    assert (ingested["rows"], replayed["rows"]) == (COUNT, COUNT)
    assert live.stat("standalone").messages == 0
    assert live.bodies("standalone again") == bodies
