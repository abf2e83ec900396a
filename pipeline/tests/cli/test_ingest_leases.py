"""A second ingest of a queue is told so before anything is started for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import child_environment
from live_node import LiveNode, wait_until
from waiting import leeway

from ringmq_pipeline.cli.errors import EXIT_LEASED
from ringmq_pipeline.jobs import ingest as job_module
from ringmq_pipeline.jobs.ingest import Ingest, IngestTally, ingest
from ringmq_pipeline.leases import Leases, SourceLeasedError, check_leases
from ringmq_pipeline.offsets import QueueOffset
from ringmq_pipeline.options import SourceOptions, parse
from ringmq_pipeline.sinks import sink_for

# Of the issue: within it, a second ingest has failed.
FAILS_WITHIN_S = 5.0


def options(live: LiveNode, queue: str, **more: str) -> SourceOptions:
    return parse({"endpoints": live.address, "queue": queue} | more)


def hold(live: LiveNode, queue: str, **more: str) -> Leases:
    """As a query does."""
    live.fill(queue, [b"x"])
    leases = Leases(options(live, queue, **more))
    numbering = live.stat(queue).numbering
    leases.hold(queue, QueueOffset(numbering.queue_id, numbering.epoch, 0))
    return leases


def test_a_second_ingest_fails_in_time_and_without_java(live: LiveNode, tmp_path: Path) -> None:
    first = hold(live, "taken", leaseHolder="the night shift")
    java = tmp_path / "jre" / "bin" / "java"
    java.parent.mkdir(parents=True)
    started = tmp_path / "java-was-started"
    java.write_text(f"#!/bin/sh\ntouch {started}\n")
    java.chmod(0o755)
    script = "import sys; from ringmq_pipeline.cli import main; main()"
    words = ["ingest", "--queue", "taken", "--endpoints", live.address]
    places = ["--to", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, *words, *places],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=child_environment() | {"JAVA_HOME": str(java.parents[1])},
    )
    took_s = time.monotonic() - began
    first.release()
    assert done.returncode == EXIT_LEASED, done.stderr
    assert "queue 'taken' is leased by 'the night shift'" in done.stderr
    assert not started.exists()
    assert [*tmp_path.iterdir()] == [tmp_path / "jre"]
    assert took_s < leeway(FAILS_WITHIN_S)


def test_only_another_holder_of_the_same_lease_is_in_the_way(live: LiveNode) -> None:
    first = hold(live, "held now", leaseHolder="me")
    for more in ({}, {"leaseHolder": "you"}):
        with pytest.raises(SourceLeasedError, match="'held now' is leased by 'me'"):
            check_leases(options(live, "held now", **more))
    with pytest.raises(SourceLeasedError, match="'held now' is leased by 'me'"):
        check_leases(parse({"endpoints": live.address, "queuePattern": "held.*"}))
    check_leases(options(live, "held now", leaseHolder="me"))
    check_leases(options(live, "held now", ackMode="never"))
    check_leases(options(live, "held now", lease="another"))
    check_leases(options(live, "not declared"))
    first.release()
    check_leases(options(live, "held now"))


def test_a_lease_that_has_expired_is_in_nobodys_way(live: LiveNode) -> None:
    gone = hold(live, "held once", leaseTtl="300ms")
    # As after a SIGKILL.
    gone._ended.set()

    def is_free() -> bool:
        try:
            check_leases(options(live, "held once"))
        except SourceLeasedError:
            return False
        return True

    wait_until(is_free)
    [lease] = live.stat("held once").leases
    assert lease.holder.endswith(f":{os.getpid()}")


@pytest.mark.parametrize("name", ["leaseHolder", "leaseholder"])
def test_an_ingest_has_the_holder_that_it_was_given(
    live: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So one that is started again has its lease back at once."""
    seen = {}

    def no_spark(spark: object, job: Ingest, source: dict[str, str], *more: object) -> None:
        seen.update(source)

    monkeypatch.setattr(job_module, "_run", no_spark)
    source = {"endpoints": live.address, "queue": "any", name: "nightly"}
    job = Ingest(source, sink_for("parquet", tmp_path / "table"), tmp_path / "checkpoint")
    tally = ingest(None, job)  # type: ignore[arg-type]
    assert parse(seen).lease_holder == "nightly"
    assert tally == IngestTally()


def test_an_ingest_that_fails_in_its_first_batch_leaves_no_lease(
    live: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take that of another one."""
    other = hold(live, "not mine", lease="nightly", leaseHolder="other")
    sources = []

    def fails(spark: object, job: Ingest, source: dict[str, str], *more: object) -> None:
        mine = {name: source[name] for name in ("lease", "leaseHolder")}
        sources.append(hold(live, "first batch", **mine))
        raise RuntimeError("in its first batch")

    monkeypatch.setattr(job_module, "_run", fails)
    source = {"endpoints": live.address, "queues": "first batch,not mine,no such queue"}
    source |= {"lease": "nightly"}
    job = Ingest(source, sink_for("parquet", tmp_path / "table"), tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match="in its first batch"):
        ingest(None, job)  # type: ignore[arg-type]
    assert live.stat("first batch").leases == ()
    assert live.stat("first batch").messages == 1
    assert [lease.holder for lease in live.stat("not mine").leases] == ["other"]
    for leases in (other, *sources):
        leases.release()
