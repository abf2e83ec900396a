"""Real processes: killed, and stopped for a while."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringmq_gm.options import GroupOptions

EXAMPLES = Path(__file__).parents[2] / "examples"
README = Path(__file__).parents[2] / "README.md"
DEADLINE_S = 30.0


class Talk:
    """Three of the example's processes, and what each has printed."""

    def __init__(self, registry: Path) -> None:
        self.lines: dict[str, list[str]] = {}
        self._selector = selectors.DefaultSelector()
        self._rest: dict[str, bytes] = {}
        self.processes = {
            name: subprocess.Popen(
                [sys.executable, EXAMPLES / "member.py", name, f"sqlite://{registry}"],
                stdout=subprocess.PIPE,
                bufsize=0,
            )
            for name in ("anna", "ben", "carl")
        }
        for name, process in self.processes.items():
            self.lines[name] = []
            self._rest[name] = b""
            self._selector.register(process.stdout.fileno(), selectors.EVENT_READ, name)  # type: ignore[union-attr]

    def until(self, condition: Callable[[], bool]) -> float:
        """Reads until it holds; returns the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + DEADLINE_S, self.lines
            for key, _ in self._selector.select(0.1):
                data = os.read(key.fd, 65536)
                if not data:
                    self._selector.unregister(key.fd)
                *lines, self._rest[key.data] = (self._rest[key.data] + data).split(b"\n")
                self.lines[key.data] += [line.decode() for line in lines]
        return time.monotonic() - began

    def delivered(self, name: str) -> list[str]:
        return [line for line in self.lines[name] if line.startswith("delivered")]

    def confirmed(self, name: str) -> int:
        confirmed = [line.split()[1] for line in self.lines[name] if line.startswith("confirmed")]
        return int(confirmed[-1]) if confirmed else 0

    def said(self, name: str, line: str) -> bool:
        return line in self.lines[name]

    def close(self) -> None:
        self._selector.close()
        for process in self.processes.values():
            process.kill()
            process.communicate()


@contextmanager
def talk(tmp_path: Path) -> Iterator[Talk]:
    talking = Talk(tmp_path / "registry.db")
    try:
        talking.until(lambda: talking.confirmed("anna") >= 10)
        yield talking
    finally:
        talking.close()


@pytest.mark.slow
@pytest.mark.cluster
def test_after_sigkill_of_the_master_the_next_confirms_before_any_time_out(
    tmp_path: Path,
) -> None:
    with talk(tmp_path) as talking:
        confirmed = talking.confirmed("anna")
        talking.processes["anna"].send_signal(signal.SIGKILL)
        took_s = talking.until(lambda: talking.confirmed("ben") > confirmed)
        # Its closed connection told them, not the time-out of 2 s.
        assert took_s < GroupOptions().ring_timeout_s
        talking.until(lambda: talking.confirmed("ben") > confirmed + 20)
        anna, ben, carl = (talking.delivered(name) for name in ("anna", "ben", "carl"))
        # What it had delivered to itself alone died with it: nobody has confirmed that.
        sure = talking.confirmed("anna")
        assert sure >= confirmed
        assert ben[:sure] == anna[:sure]
        assert ben[: len(carl)] == carl[: len(ben)]


@pytest.mark.slow
@pytest.mark.cluster
def test_a_stopped_master_is_found_out_and_steps_down_when_it_goes_on(tmp_path: Path) -> None:
    with talk(tmp_path) as talking:
        talking.processes["anna"].send_signal(signal.SIGSTOP)
        took_s = talking.until(lambda: talking.said("ben", "master 2"))
        # Not before the time-out of 2 s, and not much after its jitter.
        assert 1.5 < took_s < 4.0
        confirmed = talking.confirmed("ben")
        talking.until(lambda: talking.confirmed("ben") > confirmed + 10)
        talking.processes["anna"].send_signal(signal.SIGCONT)
        talking.until(lambda: talking.said("anna", "outside 2"))
        # It may have confirmed one more, whose marks had reached it before it was stopped.
        sure = talking.confirmed("anna")
        assert talking.delivered("anna")[:sure] == talking.delivered("ben")[:sure]
        ben, carl = talking.delivered("ben"), talking.delivered("carl")
        assert ben[: len(carl)] == carl[: len(ben)]


@pytest.mark.slow
@pytest.mark.cluster
def test_a_short_stop_suspects_nobody(tmp_path: Path) -> None:
    with talk(tmp_path) as talking:
        talking.processes["ben"].send_signal(signal.SIGSTOP)
        time.sleep(1.0)  # The length of the stop, not a wait for anything.
        talking.processes["ben"].send_signal(signal.SIGCONT)
        confirmed = talking.confirmed("anna")
        talking.until(lambda: talking.confirmed("anna") > confirmed + 20)
        assert not talking.said("ben", "mirror 2")
        assert not talking.said("carl", "mirror 2")


@pytest.mark.slow
@pytest.mark.cluster
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "three_processes.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same order everywhere: True" in done.stdout


def test_the_readme_shows_the_example_as_it_is() -> None:
    _, _, member = (EXAMPLES / "member.py").read_text().partition('"""\n\n')
    assert member.strip() in README.read_text()
