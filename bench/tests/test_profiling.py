"""How a profile is added up, and that a process with the hook writes one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench import procs
from bench.measure import Point
from bench.profiling import shares
from bench.profiling.command import HOOK, Profile, parse, points_of, table
from bench.profiling.hook.sitecustomize import FOLDER_VARIABLE
from bench.profiling.shares import Row
from bench.report import goals_for
from bench.rivals import FULL_ROWS
from rich.console import Console
from waiting import leeway

STEP = ("/x/ringmq/gm/src/ringmq_gm/core/member.py", 1, "step")
WRITE = ("/x/ringmq/node/src/ringmq_node/storage/disk/disk.py", 2, "write")
PWRITEV = ("~", 0, "<built-in method posix.pwritev>")
JOIN = ("~", 0, "<method 'join' of 'bytes' objects>")


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/x/ringmq/gm/src/ringmq_gm/core/member.py", "gm core"),
        ("/x/ringmq/gm/src/ringmq_gm/links/outbox.py", "links"),
        ("/x/ringmq/gm/src/ringmq_gm/rings.py", "gm shell"),
        ("/x/ringmq/node/src/ringmq_node/storage/rounds.py", "storage"),
        ("/x/ringmq/node/src/ringmq_node/queue/master.py", "queue"),
        ("/x/ringmq/node/src/ringmq_node/running.py", "node, the rest"),
        ("/x/ringmq/client/src/ringmq/v1/ring_pb2.py", "client and messages"),
        ("/x/ringmq/.venv/lib/python3.11/site-packages/tenacity/wait.py", shares.OTHER),
        ("/usr/lib/python3.11/asyncio/tasks.py", "asyncio"),
    ],
)
def test_a_file_belongs_to_its_package_whatever_the_checkout_is_called(
    file: str, package: str
) -> None:
    assert shares.package_of(file) == package


def test_a_function_in_c_counts_as_its_callers_and_nothing_twice() -> None:
    rows: dict[tuple[str, int, str], Row] = {
        STEP: (10, 10, 1.0, 6.0, {}),
        WRITE: (10, 10, 2.0, 5.0, {STEP: (10, 10, 2.0, 5.0)}),
        PWRITEV: (10, 10, 3.0, 3.0, {WRITE: (10, 10, 3.0, 3.0)}),
        # 1.5 s of it was called by the loop, which isn't in the profile.
        JOIN: (30, 30, 4.0, 4.0, {STEP: (10, 10, 0.5, 0.5), WRITE: (10, 10, 2.0, 2.0)}),
    }
    assert shares.seconds_by_package(rows) == {
        "gm core": 1.5,
        shares.DISK: 7.0,
        shares.OTHER: 1.5,
    }


def test_the_table_has_the_packages_with_most_above_and_the_disk_without_a_share() -> None:
    seconds = {"wire": 1e-3, shares.DISK: 9.0, "gm core": 3e-3}
    one = Profile(Point(10, 1024, 1), seconds, 0.02)
    many = Profile(Point(100, 1024, 1, queues=100), {"wire": 1e-2}, 0.03)
    said = io.StringIO()
    Console(file=said, width=120).print(table([one, many]))
    lines = [line.split() for line in said.getvalue().splitlines()]
    assert [line for line in lines if any("%" in word for word in line)] == [
        ["gm", "core", "75%", "300", "0%", "0"],
        ["wire", "25%", "100", "100%", "100"],
    ]
    assert ["all", "of", "the", "above", "400", "100"] in lines
    assert ["storage,", "disk", "calls,", "with", "waits", "900000", "0"] in lines
    assert ["processor", "time", "of", "the", "nodes", "2000", "300"] in lines


def test_a_process_with_the_hook_profiles_what_is_between_the_signals(tmp_path: Path) -> None:
    """Each time anew. A package that has the name of the node's command stands for it."""
    command = tmp_path / "ringmq_node"
    command.mkdir()
    (command / "__init__.py").touch()
    (command / "cli.py").write_text(
        "import sys\n"
        "def before():\n    pass\n"
        "def between():\n    sum(range(1000))\n"
        "before()\n"
        "print('ready', flush=True)\n"
        "for _ in sys.stdin:\n    between()\n    print('done', flush=True)\n"
    )
    path = os.pathsep.join([str(HOOK), str(tmp_path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "ringmq_node.cli", "node", "start"],
        env=os.environ | {FOLDER_VARIABLE: str(tmp_path), "PYTHONPATH": path},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        process.send_signal(signal.SIGUSR2)
        written = tmp_path / f"{process.pid}.pstats"
        assert procs.wait_until(written.exists, timeout_s=leeway(10.0))
        first = shares.read([written])
        written.unlink()
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGUSR2)
        assert procs.wait_until(written.exists, timeout_s=leeway(10.0))
        process.stdin.close()
        assert process.wait(leeway(10.0)) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert first["node, the rest"] > 0
    assert shares.read([written]).get("node, the rest", 0) == 0


def test_a_full_profile_has_every_row_with_a_goal() -> None:
    def shape(point: Point) -> tuple[int, int, int, bool]:
        return point.size_bytes, point.window, point.queues, point.consumed

    profiled = {shape(point) for point in points_of(parse(["--full", "--scale", "0.001"]))}
    assert profiled == {shape(row) for row in FULL_ROWS if goals_for(row)}
    assert all(point.count >= point.queues for point in points_of(parse(["--scale", "0.001"])))
