"""Whether all is there that a pipeline needs: looked at, not assumed. Nothing is changed.

Each check is independent of the others, so one run names everything that is amiss. What writes is
undone: a file in each folder that a job would write to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile

import ringmq
from ringmq_pipeline.java import FITTING, find_java
from ringmq_pipeline.leases import running_lease
from ringmq_pipeline.session import spark_session

PYTHON_MIN = (3, 11)
# Of the extra; without deltalake, tables are written as Parquet.
PACKAGES = ("pyspark", "pyarrow", "deltalake")
WORKER_ROWS = 10
CALL_S = 5.0


class Unfit(Exception):
    """The message says what is amiss, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    is_fit: bool
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What the pipeline is to use; empty: not looked at."""

    endpoints: str
    queues: tuple[str, ...] = ()
    vhost: str = "/"
    lease: str = "ingest"
    folders: tuple[Path, ...] = ()
    master: str = ""
    conf: dict[str, str] | None = None


def examine(
    wanted: PipelineParts, tell: Callable[[Finding], None] = lambda finding: None
) -> list[Finding]:
    """All findings; each is told as soon as it is there."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("java", _java),
        *((f"package {name}", partial(_package, name)) for name in PACKAGES),
        *((f"folder {path}", partial(_folder, path)) for path in wanted.folders),
    ]
    if wanted.master:
        checks.append((f"spark {wanted.master}", partial(_spark, wanted)))
    checks.append((f"broker {wanted.endpoints}", partial(_broker, wanted)))
    checks += [(f"queue {name}", partial(_queue, wanted, name)) for name in wanted.queues]
    found = []
    for check, look in checks:
        begin = time.monotonic()
        try:
            is_fit, text = True, look()
        except Exception as error:
            # A check that breaks says what a user would meet.
            is_fit, text = False, f"{error}".partition("\n")[0] or type(error).__name__
        found.append(Finding(check, is_fit, text, round(time.monotonic() - begin, 3)))
        tell(found[-1])
    return found


def _python() -> str:
    text = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MIN:
        raise Unfit(f"{text}: Spark 4.3 needs {'.'.join(map(str, PYTHON_MIN))} or newer")
    return f"{text}, {sys.executable}"


def _java() -> str:
    java = find_java()
    return f"{java.version} from {java.origin} (fitting: {FITTING})"


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        raise Unfit("not installed: run `pip install 'ringmq[pipeline]'`") from None


def _folder(path: Path) -> str:
    """A job makes the folder; so the nearest one that is there has to take files."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    try:
        with TemporaryFile(dir=there) as file:
            file.write(b"x")
    except OSError as error:
        raise Unfit(f"{there} can't be written: {error.strerror}") from error
    return "can be written" if there == path else f"can be made in {there}"


def _spark(wanted: PipelineParts) -> str:
    """The session starts, and a worker runs our code with our packages."""
    with spark_session("ringmq-pipeline doctor", master=wanted.master, conf=wanted.conf) as spark:
        functions = import_module("pyspark.sql.functions")
        # Without annotations: by those of a plain function, Spark takes it for one of pandas.
        worker = functions.udf(lambda number: _worker(), "string")
        rows = spark.range(WORKER_ROWS).select(worker("id").alias("has"))
        has = {row.has for row in rows.collect()}
        return f"Spark {spark.version}; its workers have {'; '.join(sorted(has))}"


def _worker() -> str:
    source = import_module("pyspark_ringmq").__name__
    return f"{source}, pyarrow {import_module('pyarrow').__version__}"


def _broker(wanted: PipelineParts) -> str:
    with ringmq.connect_sync(wanted.endpoints, deadline_s=CALL_S) as client:
        status = client.cluster_status()
        up = [node.node for node in status.nodes if node.state is ringmq.NodeState.RUNNING]
        if not up:
            raise Unfit("no node of the cluster is up")
        return f"nodes up: {', '.join(sorted(up))} of {len(status.nodes)}"


def _queue(wanted: PipelineParts, name: str) -> str:
    with ringmq.connect_sync(wanted.endpoints, deadline_s=CALL_S, vhost=wanted.vhost) as client:
        reader = client.reader(name)
        stat = reader.stat()
        if lease := running_lease(stat, wanted.lease):
            left_s = (lease.until_ms - stat.time_ms) / 1000
            raise Unfit(
                f"it is leased by {lease.holder!r}, which reads it, for {left_s:.0f} s more"
            )
        for _ in reader.browse_arrow(stat.first, min(stat.first + 1, stat.end)):
            break
        return f"{stat.messages} messages, {stat.bytes} bytes; lease is free; it can be read"
