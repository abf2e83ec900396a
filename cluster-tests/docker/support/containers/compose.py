"""`deploy/compose.yaml` run by a real Compose, as a user runs it: up, exec, down.

Everything that it makes gets the labels of the run (see `engine`), by a second file that only adds
these. So a run that is killed is swept up by the next one, as all other container tests are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import yaml
from docker.models.containers import Container
from expected_logs import ExpectedLogs

from containers.engine import labels_of, new_run_id, not_run, remove_run

COMPOSE_FILE = Path(__file__).resolve().parents[4] / "deploy" / "compose.yaml"
COMMAND_SECONDS_MAX = 180


class ComposeError(RuntimeError):
    """A command of Compose has failed. The message has the end of its output."""


def compose_command() -> list[str] | None:
    """Debian's `docker-compose`, else Docker's own `docker compose`; None if there is neither."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = subprocess.run(
        ["docker", "compose", "version"], capture_output=True, check=False, timeout=20
    )
    return ["docker", "compose"] if plugin.returncode == 0 else None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Compose:
    """One project of `deploy/compose.yaml`."""

    def __init__(
        self,
        command: Sequence[str],
        client: docker.DockerClient,
        folder: Path,
        run_id: str,
        variables: Mapping[str, str],
    ) -> None:
        self.project = f"ringmq{run_id}"
        self._client = client
        self._environment = {**os.environ, **variables}
        labels = folder / "labels.yaml"
        labels.write_text(yaml.safe_dump(_labelled(labels_of(run_id))))
        self._command = [
            *command,
            *("--project-name", self.project),
            *("--file", str(COMPOSE_FILE), "--file", str(labels)),
        ]

    def run(self, *arguments: str, within_s: float = COMMAND_SECONDS_MAX) -> str:
        """Runs one command of Compose; returns its stdout."""
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise ComposeError(f"{' '.join(arguments)} exited with {done.returncode}:\n{tail}")
        return done.stdout

    def ringmq(self, node: str, *arguments: str) -> Any:
        """`ringmq ARGUMENTS --json` in a node's container; its value."""
        return json.loads(self.run("exec", "-T", node, "ringmq", *arguments, "--json"))

    def seeds(self, nodes: Sequence[str]) -> list[str]:
        """Where a client on this machine reaches the nodes: at the ports that are published."""
        return [f"127.0.0.1:{self._environment[f'{node.upper()}_PORT']}" for node in nodes]

    def container(self, service: str) -> Container:
        (found,) = self._client.containers.list(
            all=True,
            filters={
                "label": [
                    f"com.docker.compose.project={self.project}",
                    f"com.docker.compose.service={service}",
                ]
            },
        )
        return found

    def judge_logs(self) -> None:
        """`AssertionError` for an error that any container has logged, in any of its runs. Their
        logs go with them: to be called before `down`."""
        containers = self._client.containers.list(
            all=True, filters={"label": f"com.docker.compose.project={self.project}"}
        )
        assert containers, f"{self.project} has no containers, and no logs"
        ExpectedLogs().judge(
            (str(each.name), each.logs().decode(errors="replace").splitlines())
            for each in containers
        )

    def health(self, service: str) -> str:
        """`starting`, `healthy`, `unhealthy`; or the container's state if it doesn't run."""
        state = self.container(service).attrs["State"]
        health: str = state["Health"]["Status"] if state["Running"] else state["Status"]
        return health

    def crash(self, service: str) -> None:
        """SIGKILL from outside the engine: it doesn't know that anybody wanted it, and restarts the
        container as the file says. (After `docker kill` it would stay down.)"""
        os.kill(self.container(service).attrs["State"]["Pid"], signal.SIGKILL)

    def restarts(self, service: str) -> int:
        count: int = self.container(service).attrs["RestartCount"]
        return count


@contextmanager
def project(
    client: docker.DockerClient, folder: Path, variables: Mapping[str, str]
) -> Iterator[Compose]:
    """A project with nothing up yet; all that it has made is removed at the end."""
    command = compose_command()
    if command is None:
        not_run("there is neither `docker-compose` nor `docker compose`")
    run_id = new_run_id()
    try:
        yield Compose(command, client, folder, run_id, variables)
    finally:
        remove_run(client, run_id)


def _labelled(labels: Mapping[str, str]) -> dict[str, Any]:
    """A compose file that adds the labels to all that `deploy/compose.yaml` has."""
    loaded = yaml.safe_load(COMPOSE_FILE.read_text())
    sections = {
        section: {name: {"labels": dict(labels)} for name in loaded[section]}
        for section in ("services", "networks", "volumes")
    }
    return {"version": "3.8", **sections}
