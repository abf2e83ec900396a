from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from bench import procs
from bench.ended import EndedChildren
from bench.pipeline.measured import Done, Which, measure

CHILD_CPU_S = 0.5
# As Spark's daemon of Python workers: it ignores SIGCHLD, forks, and waits for nobody.
_PARENT = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, {{handler}})
print(flush=True)
for _ in sys.stdin:
    child = os.fork()
    if not child:
        while time.process_time() < {CHILD_CPU_S}: pass
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # it has ended, and its parent ignores it
    print(flush=True)
"""


@contextlib.contextmanager
def parent(handler: str) -> Iterator[subprocess.Popen[bytes]]:
    """It has one child for each line that it is told, and answers when that has ended."""
    code = _PARENT.format(handler=handler)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout
        process.stdout.readline()
        yield process


def have_child(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()


def test_a_child_of_a_parent_that_ignores_it_is_missing_in_the_tree() -> None:
    with parent("signal.SIG_IGN") as process, EndedChildren([process.pid], every_s=0.01) as ended:
        before = procs.tree_cpu_s([process.pid])
        have_child(process)
        assert procs.tree_cpu_s([process.pid]) - before < CHILD_CPU_S / 2
        assert CHILD_CPU_S / 2 < ended.cpu_s() <= CHILD_CPU_S + 0.1


def test_a_child_that_was_waited_for_counts_once() -> None:
    with parent("signal.SIG_DFL") as process, EndedChildren([process.pid], every_s=0.01) as ended:
        have_child(process)
        assert procs.tree_cpu_s([process.pid]) >= CHILD_CPU_S - 0.02
        assert ended.cpu_s() == 0


def test_a_measured_job_has_the_time_of_workers_that_were_killed() -> None:
    def work() -> Done:
        have_child(process)
        return Done(1)

    with parent("signal.SIG_IGN") as process:
        measured = measure(Which("replay", "tasks fail", 1), work, message_bytes=1)
    assert measured.job_cpu_s > CHILD_CPU_S / 2
