from __future__ import annotations

import os
import subprocess
import sys
import time

from bench import procs
from waiting import leeway

_STAT = "{pid} (a (b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {utime} {stime} {cutime} {cstime} 20 0 1"


def test_a_stat_line_whose_name_holds_brackets_and_spaces() -> None:
    line = _STAT.format(pid=7, parent=3, utime=1, stime=20, cutime=300, cstime=4000)
    assert procs.parse_stat(line) == procs.ProcessTimes(parent=3, ticks=4321)


def test_a_tree_is_its_roots_and_all_below_each_once() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 1, 9: 8}
    processes = {pid: procs.ProcessTimes(parent, 1) for pid, parent in parents.items()}
    assert procs.tree_pids([2, 3], processes) == {2, 3}
    assert procs.tree_pids([1], processes) == {1, 2, 3, 4}
    assert procs.tree_pids([8], processes) == set()


def test_the_cpu_of_a_child_counts_while_it_lives_and_after_it_was_waited_for() -> None:
    burn = "import time; end = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    before = procs.tree_cpu_s([os.getpid()])
    subprocess.run([sys.executable, "-c", burn], check=True)
    # A tick may be cut off at either end.
    assert procs.tree_cpu_s([os.getpid()]) - before >= 0.08


def test_a_killed_group_takes_its_children_along() -> None:
    shell = "sleep 60 & echo $!; wait"
    process = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
        procs.kill_group(process)
    assert process.returncode == -9
    assert procs.wait_until(lambda: not _runs(child), timeout_s=5)


def _runs(pid: int) -> bool:
    """False for a zombie too: it waits to be reaped by a parent that isn't ours."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_waiting_ends_at_the_deadline() -> None:
    started = time.monotonic()
    assert not procs.wait_until(lambda: False, timeout_s=0.05, interval_s=0.01)
    assert time.monotonic() - started < leeway(2.0)


def test_a_free_port_has_no_listener() -> None:
    assert not procs.is_listening(procs.free_port())
