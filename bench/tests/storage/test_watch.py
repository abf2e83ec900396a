"""A measured process and its files: sampled, killed, evicted from the page cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import procs
from bench.measure import BenchError
from bench.storage.observations import Observations
from bench.storage.page_cache import evict
from bench.storage.watch import Watched


def watched(tmp_path: Path, program: str) -> Watched:
    return Watched([sys.executable, "-u", "-c", program], tmp_path / "log")


def follow(
    watching: Watched, observed: Observations, directory: Path, *, deadline_s: float = 20
) -> None:
    watching.follow(
        observed,
        roots=[watching.process.pid],
        directory=directory,
        until="end",
        deadline_s=deadline_s,
        say=lambda _: None,
    )


def test_a_process_is_sampled_at_the_edges_of_its_phases_and_killed_after(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    program = (
        "import time\n"
        'print(\'{"event": "begin", "phase": "fill", "total": 2, "at": 1}\')\n'
        'print(\'{"event": "end", "done": 2, "at": 2}\')\n'
        "time.sleep(60)"
    )
    observed = Observations()
    with watched(tmp_path, program) as watching:
        follow(watching, observed, tmp_path)
        assert watching.process.poll() is None
    assert watching.process.returncode == -9
    assert observed.seconds("fill") == 1
    assert len(observed.samples) >= 2
    assert all(each.phase == "fill" for each in observed.samples[-2:])
    assert observed.samples[-1].disk_bytes >= 100_000
    assert observed.rss_peak_bytes >= observed.samples[-1].rss_bytes > 1 << 20


def test_a_process_that_ends_early_is_quoted(tmp_path: Path) -> None:
    with (
        watched(tmp_path, "raise SystemExit('out of luck')") as watching,
        pytest.raises(BenchError, match=r"ended with 1: out of luck"),
    ):
        follow(watching, Observations(), tmp_path)


def test_a_process_that_hangs_meets_its_deadline(tmp_path: Path) -> None:
    with (
        watched(tmp_path, "import time; time.sleep(60)") as watching,
        pytest.raises(BenchError, match="isn't done in time"),
    ):
        follow(watching, Observations(), tmp_path, deadline_s=0.1)
    assert watching.process.returncode == -9


def test_disk_use_counts_what_is_below_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("x", "a/y"):
        with (tmp_path / name).open("wb") as file:
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    assert 2 << 20 <= procs.disk_use_bytes(tmp_path) < 3 << 20
    assert procs.disk_use_bytes(tmp_path / "none") == 0


def test_the_use_of_a_tree_is_that_of_its_processes() -> None:
    # In a process of its own: children that other tests have left would be in the sum.
    code = """
import os
from bench import procs

use = procs.tree_use([os.getpid()])
assert use.rss_peak_bytes >= use.rss_bytes > 10 << 20, use
assert use.cpu_s > 0, use
assert procs.own_rss_peak_bytes() >= use.rss_bytes, use
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_evicting_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 5000)
    (tmp_path / "link").symlink_to("nowhere")
    evict(tmp_path)
    assert (tmp_path / "a" / "file").read_bytes() == b"x" * 5000
