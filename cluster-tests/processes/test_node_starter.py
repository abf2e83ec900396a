"""A command line in a forked process ends as one that a shell has started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from loops import run
from nemesis.command_line import ringmq
from nemesis.programs import client_starter
from node_starter import starter_of
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def ended(words: list[str], folder: Path, *, node: str = "a") -> tuple[int, str]:
    """The exit code of `ringmq WORDS`, and its output."""
    with open(folder / "log", "w+b") as log:
        process = starter_of(node).start(words, log.fileno())
        code = process.wait(60.0)
        log.seek(0)
        return code, log.read().decode()


def test_it_has_the_codes_and_the_output_of_the_command_line(tmp_path: Path) -> None:
    assert ended(["--version"], tmp_path)[0] == 0
    assert ended(["--version"], tmp_path)[1].startswith("ringmq ")
    code, said = ended(["node", "start", "--no-such-option"], tmp_path)
    assert code == 2
    assert "No such option" in said


def test_what_it_prints_and_its_errors_are_apart() -> None:
    told = ringmq("queue", "list", "--seeds", "127.0.0.1:1")
    assert (told.exit_code, told.out) == (1, "")
    assert "connecting to 127.0.0.1:1" in told.err


def test_a_clients_program_has_its_input_and_output(tmp_path: Path) -> None:
    words = ["publish", "127.0.0.1:1", "q", "tag", "1", "0.1"]
    source, to_it = os.pipe()
    with open(tmp_path / "out", "w+b") as out, open(tmp_path / "errors", "w+b") as errors:
        process = client_starter().start(words, out.fileno(), errors=errors.fileno(), source=source)
        os.close(source)
        os.write(to_it, b"\n")
        # Nobody serves it: it says so when it has begun.
        assert process.wait(60.0) == 1
        os.close(to_it)
        assert (tmp_path / "out").read_bytes() == b"ready\n"
        assert b"connecting to 127.0.0.1:1" in (tmp_path / "errors").read_bytes()


def test_the_signal_that_ended_it(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        process = starter_of("a").start(["cluster", "status", "-s", "127.0.0.1:1"], log.fileno())
    process.kill()
    assert process.wait(60.0) == -signal.SIGKILL
    # Nothing is sent to a pid that may be another process' by now.
    process.send_signal(signal.SIGTERM)


def test_a_signal_to_one_that_ends_while_another_thread_waits_for_it(tmp_path: Path) -> None:
    """Two faults of a storm kill the same node."""
    with open(tmp_path / "log", "wb") as log:
        process = starter_of("a").start(["cluster", "status", "-s", "127.0.0.1:1"], log.fileno())

    async def is_gone() -> None:
        gone = Path(f"/proc/{process.pid}")
        await until(lambda: not gone.exists(), "the process has been reaped", within_s=60.0)

    with process.taking_its_code:
        os.kill(process.pid, signal.SIGKILL)
        run(is_gone())
        process.kill()
    assert process.wait(60.0) == -signal.SIGKILL


def test_lives_are_processes_of_their_own(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        words = ["node", "start", "--node=a", f"--registry=sqlite:///{tmp_path}/r.db"]
        words += [f"--data={tmp_path}/a", "--listen=127.0.0.1:0"]
        processes = [starter_of("a").start(words, log.fileno()) for _ in range(2)]
    assert len({process.pid for process in processes} | {os.getpid()}) == 3
    for process in processes:
        process.terminate()
        process.wait(60.0)
