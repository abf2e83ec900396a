"""Hosts as network namespaces on one bridge, and cuts between two of them.

A cut is silent: a host gets a wrong hardware address for the other, so that its frames go
nowhere and nobody is told, as with a broken switch. If only one of the two gets it, frames pass
the other way. Addresses are in namespaces that the run has made; nothing reaches the machine's
own network.
"""

from __future__ import annotations

import os
import subprocess
from itertools import count
from types import TracebackType

from node_starter import enter_namespace

NOWHERE = "02:00:00:00:00:01"
_networks = count(1)


class NoNamespacesError(Exception):
    """Network namespaces can't be made here; the message says why."""


class Network:
    """`with Network("a", "b") as network`: two hosts that reach each other. Root only.

    Raises `NoNamespacesError`."""

    def __init__(self, *hosts: str) -> None:
        self._prefix = f"ringmq{os.getpid()}-{next(_networks)}"
        self._hosts = {host: number for number, host in enumerate(hosts, 1)}
        self._made: list[str] = []

    def __enter__(self) -> Network:
        if os.geteuid() != 0:
            raise NoNamespacesError("only root may make network namespaces")
        try:
            self._make("switch")
            self._ip("switch", "link add br0 type bridge")
            self._ip("switch", "link set br0 up")
            for host in self._hosts:
                self._make(host)
                peer = f"link add eth0 type veth peer name {host} netns {self._name('switch')}"
                self._ip(host, peer)
                self._ip("switch", f"link set dev {host} master br0 up")
                self._ip(host, f"addr add {self.address(host)}/24 dev eth0")
                self._ip(host, "link set eth0 up")
                self._ip(host, "link set lo up")
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

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=True, timeout=10)
        self._made.clear()

    def address(self, host: str) -> str:
        return f"10.77.0.{self._hosts[host]}"

    def inside(self, host: str) -> list[str]:
        """The words before a command that runs it on `host`; its pid is then the command's."""
        return ["ip", "netns", "exec", self._name(host)]

    def namespace(self, host: str) -> str:
        """The name under which `ip` and `enter_namespace` know it."""
        return self._name(host)

    def enter(self, host: str) -> None:
        """The calling thread, and those that it starts from now on, are on `host`."""
        enter_namespace(self._name(host))

    def cut(self, one: str, *others: str) -> None:
        """From now on nothing passes between `one` and each of `others`."""
        for other in others:
            self.cut_way(one, other)
            self.cut_way(other, one)

    def heal(self, one: str, *others: str) -> None:
        for other in others:
            self.heal_way(one, other)
            self.heal_way(other, one)

    def cut_way(self, source: str, target: str) -> None:
        """From now on nothing gets from `source` to `target`; the other way it does."""
        entry = f"neigh replace {self.address(target)} lladdr {NOWHERE} nud permanent"
        self._ip(source, f"{entry} dev eth0")

    def heal_way(self, source: str, target: str) -> None:
        self._ip(source, f"neigh del {self.address(target)} dev eth0")

    def _name(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _make(self, host: str) -> None:
        made = subprocess.run(
            ["ip", "netns", "add", self._name(host)],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
        if made.returncode != 0:
            raise NoNamespacesError(
                f"a network namespace can't be made here: {made.stderr.strip()}"
            )
        self._made.append(self._name(host))

    def _ip(self, host: str, command: str) -> None:
        done = subprocess.run(
            ["ip", "-n", self._name(host), *command.split()],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
        assert done.returncode == 0, f"ip {command}: {done.stderr}"
