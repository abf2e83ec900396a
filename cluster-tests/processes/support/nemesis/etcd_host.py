"""One etcd on a host (a network namespace) of its own, and its faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from waiting import until

from nemesis.network import Network

PORT = 2379
READY_S_MAX = 20.0


class EtcdHost:
    """`with EtcdHost(network, "etcd", folder) as etcd: await etcd.wait_ready()`"""

    def __init__(self, network: Network, host: str, folder: Path) -> None:
        self._network, self._host, self._folder = network, host, folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EtcdHost:
        self.launch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"etcd://{self._network.address(self._host)}:{PORT}/ringmq"

    @property
    def _log(self) -> Path:
        return self._folder / "etcd.log"

    def launch(self) -> None:
        """Starts it on the data that it has. `FileNotFoundError` if etcd isn't installed."""
        assert self._process is None
        binary = shutil.which("etcd")
        if binary is None:
            raise FileNotFoundError("etcd is not installed (Debian: apt-get install etcd-server)")
        url = f"http://{self._network.address(self._host)}:{PORT}"
        with open(self._log, "ab") as output:
            self._process = subprocess.Popen(
                [
                    *self._network.inside(self._host),
                    binary,
                    f"--data-dir={self._folder / 'etcd'}",
                    f"--listen-client-urls={url}",
                    f"--advertise-client-urls={url}",
                    "--listen-peer-urls=http://127.0.0.1:2380",
                    "--logger=zap",
                ],
                stdout=output,
                stderr=output,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )

    async def wait_ready(self) -> None:
        await until(
            lambda: "serving client traffic" in self._log.read_text(errors="replace"),
            "etcd serves",
            within_s=READY_S_MAX,
        )

    @property
    def is_running(self) -> bool:
        """Whether it was launched and not killed; it may stand still."""
        return self._process is not None

    def kill(self) -> None:
        """SIGKILL, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def stop(self) -> None:
        """SIGSTOP: its connections stay open, and nothing answers on them."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
