"""Etcd as processes that a test starts, kills, stops and starts again, on loopback.

    with EtcdCluster(folder, size=3) as etcd:
        registry = open_registry(etcd.url)
        etcd.kill(0)
        etcd.start(0)

Every process is ended by its own pid when the block is left, even if it is stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType

import pytest

START_S_MAX = 20.0
PORTS, WORKERS_MAX = 16_000, 16
NOT_INSTALLED = "etcd is not installed (Debian: apt-get install etcd-server)"


def require_etcd() -> str:
    """The path of etcd; skips the test if there is none."""
    path = shutil.which("etcd")
    if path is None:
        pytest.skip(NOT_INSTALLED)
    return path


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on right now.

    They lie below those that the system gives to outgoing connections: one of these could take the
    port of a node that is down for a moment. Each worker of a run has its own: between this look
    and the start of a node, another worker would find the same port free.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    share = PORTS // WORKERS_MAX
    first = max(1024, lowest - PORTS) + _worker() % WORKERS_MAX * share
    # Drawn from the system's chance: runs with the same seed would want the same ports.
    wanted = random.SystemRandom().sample(range(first, first + share), 100 + count)
    return list(itertools.islice(filter(_is_free, wanted), count))


def _worker() -> int:
    """The number of this process among pytest's workers."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _state_of(thread: Path) -> str:
    """As `ps` says it, of a thread's folder in /proc."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


class EtcdCluster:
    """`size` members with their data below `folder`; all are up when the block is entered."""

    def __init__(self, folder: Path, size: int = 1) -> None:
        self._binary = require_etcd()
        self._folder = folder
        ports = free_ports(2 * size)
        self.client_ports = ports[:size]
        self._peer_ports = ports[size:]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.client_ports]

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.endpoints)}/test"

    def __enter__(self) -> EtcdCluster:
        try:
            for index in range(len(self._processes)):
                self.launch(index)
            for index in range(len(self._processes)):
                self.wait_healthy(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def launch(self, index: int) -> None:
        """Starts a member on the data that it has, and doesn't wait for it."""
        assert self._processes[index] is None, f"member {index} runs already"
        client = f"http://127.0.0.1:{self.client_ports[index]}"
        peer = f"http://127.0.0.1:{self._peer_ports[index]}"
        cluster = ",".join(
            f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(self._peer_ports)
        )
        environment = dict(os.environ)
        if platform.machine() not in ("x86_64", "AMD64"):
            # Etcd 3.4 wants to be asked nicely on the others.
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / f"m{index}.log", "ab") as log:
            self._processes[index] = subprocess.Popen(
                [
                    self._binary,
                    f"--name=m{index}",
                    f"--data-dir={self._folder / f'm{index}'}",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={cluster}",
                    "--logger=zap",
                ],
                stdout=log,
                stderr=log,
                env=environment,
            )

    def start(self, index: int = 0) -> None:
        """Starts a member on the data that it has, and waits until it answers."""
        self.launch(index)
        self.wait_healthy(index)

    def kill(self, index: int = 0) -> None:
        """SIGKILL."""
        process = self._processes[index]
        assert process is not None, f"member {index} doesn't run"
        process.kill()
        process.wait(10)
        self._processes[index] = None

    def stop(self, index: int = 0) -> None:
        """SIGSTOP: its connections stay open, and nothing answers on them."""
        process = self._signal(index, signal.SIGSTOP)
        # On a busy machine its threads may go on for a moment, and answer.
        threads = Path(f"/proc/{process.pid}/task")
        deadline = time.monotonic() + START_S_MAX
        while any(_state_of(thread) != "T" for thread in threads.iterdir()):
            assert time.monotonic() < deadline, f"member {index} doesn't stop"
            time.sleep(0.005)

    def resume(self, index: int = 0) -> None:
        self._signal(index, signal.SIGCONT)

    def wait_healthy(self, index: int = 0) -> None:
        """Returns when the member has a leader and answers; fails after `START_S_MAX`."""
        deadline = time.monotonic() + START_S_MAX
        url = f"http://127.0.0.1:{self.client_ports[index]}/health"
        while time.monotonic() < deadline:
            process = self._processes[index]
            assert process is not None
            assert process.poll() is None, f"etcd has ended:\n{self.log(index)}"
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    if json.load(answer)["health"] == "true":
                        return
            except OSError:
                pass  # Not yet.
            time.sleep(0.02)
        raise TimeoutError(f"etcd is not healthy after {START_S_MAX} s:\n{self.log(index)}")

    def log(self, index: int = 0) -> str:
        """The last lines of a member's log."""
        return (self._folder / f"m{index}.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        for index, process in enumerate(self._processes):
            if process is not None:
                self.kill(index)

    def _signal(self, index: int, number: signal.Signals) -> subprocess.Popen[bytes]:
        process = self._processes[index]
        assert process is not None, f"member {index} doesn't run"
        process.send_signal(number)
        return process
