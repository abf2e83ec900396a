"""The Docker engine of the container tests: is there one, and nothing of ours stays in it.

testcontainers cleans up with a helper container (Ryuk) that is pulled from a registry. CI has no
registry, so it is switched off here, and everything that the tests make carries labels instead:
whose run it is, and the process and host that own it. A run removes its own at its end, whatever
the end was; a run that was killed is swept up by the next one, which sees that its owner is gone.
"""

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import NoReturn

# Before the first import of testcontainers, which reads its settings once.
os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"

import docker
import pytest
from docker.errors import APIError, NotFound

RUN_LABEL = "ringmq.run"
OWNER_LABEL = "ringmq.owner"

ANSWER_SECONDS_MAX = 20.0

# A container that is being killed keeps its networks for a moment.
REMOVAL_SECONDS_MAX = 30.0


def new_run_id() -> str:
    """A short name for one cluster's lifetime, part of the names of all that it makes."""
    return uuid.uuid4().hex[:8]


def labels_of(run_id: str) -> dict[str, str]:
    """The labels for everything that the run makes."""
    return {RUN_LABEL: run_id, OWNER_LABEL: f"{socket.gethostname()}/{os.getpid()}"}


def why_no_engine() -> str | None:
    """None if an engine answers, else why it doesn't, for the reason of a skip.

    Asked over the `docker` command, which building the images needs anyway.
    """
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            check=False,
            text=True,
            timeout=ANSWER_SECONDS_MAX,
        )
    except FileNotFoundError:
        return "there is no `docker` command on the path"
    except subprocess.TimeoutExpired:
        return f"the Docker engine did not answer within {ANSWER_SECONDS_MAX} s"
    return None if asked.returncode == 0 else f"no Docker engine: {asked.stderr.strip()}"


def not_run(reason: str) -> NoReturn:
    """Skips the test. But CI sets `RINGMQ_DOCKER=required` once its engine has answered: from then
    on whatever is missing fails the test, which would be left out without a word."""
    if os.environ.get("RINGMQ_DOCKER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def remove_run(client: docker.DockerClient, run_id: str) -> None:
    """Remove every container, network and volume of the run. Nothing there is no error."""
    _remove_labelled(client, f"{RUN_LABEL}={run_id}")


def remove_dead_runs(client: docker.DockerClient) -> list[str]:
    """Remove the leftovers of this host's runs whose process is gone. Returns their ids."""
    host = socket.gethostname()
    dead: set[str] = set()
    listed = [
        *(container.labels for container in client.containers.list(all=True, ignore_removed=True)),
        *(network.attrs.get("Labels") or {} for network in client.networks.list()),
        *(volume.attrs.get("Labels") or {} for volume in client.volumes.list()),
    ]
    for labels in listed:
        owner_host, _, pid = labels.get(OWNER_LABEL, "").rpartition("/")
        if RUN_LABEL in labels and owner_host == host and not _is_alive(int(pid)):
            dead.add(labels[RUN_LABEL])
    for run_id in sorted(dead):
        remove_run(client, run_id)
    return sorted(dead)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove_labelled(client: docker.DockerClient, label: str) -> None:
    for container in client.containers.list(
        all=True, filters={"label": label}, ignore_removed=True
    ):
        _remove(partial(container.remove, force=True, v=True))
    for network in client.networks.list(filters={"label": label}):
        _remove(network.remove)
    for volume in client.volumes.list(filters={"label": label}):
        _remove(partial(volume.remove, force=True))


def _remove(remove: Callable[[], object]) -> None:
    """Call `remove` until it is done or the thing is gone; a busy engine is asked again."""
    deadline = time.monotonic() + REMOVAL_SECONDS_MAX
    while True:
        try:
            remove()
            return
        except NotFound:
            return
        except APIError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
