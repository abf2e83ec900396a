"""A container as these tests want it: on several networks from its first moment on."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from testcontainers.core.container import DockerContainer

from containers.networks import FixedNetwork

POLL_SECONDS = 0.05


class ClusterError(AssertionError):
    """The cluster didn't get where the test wants it in time. Carries the members' last logs."""


@dataclass(frozen=True)
class Output:
    """The output of a command in a container (both streams), and its exit code."""

    exit_code: int
    text: str


def wait_until(condition: Callable[[], bool], what: str, *, deadline_s: float) -> None:
    """Return once `condition()` holds; `ClusterError` naming `what` after `deadline_s` seconds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {deadline_s} s")
        time.sleep(POLL_SECONDS)


class MemberContainer(DockerContainer):
    """A container that is on all of its networks, at fixed addresses, before it first runs.

    testcontainers knows one network; the others are joined between create and start, so that the
    process in it never sees a moment without its registry.
    """

    def __init__(self, image: str, links: Sequence[tuple[FixedNetwork, str]]) -> None:
        super().__init__(image)
        self.links = links
        self.published: dict[str, tuple[str, int]] = {}

    def start(self) -> Self:
        client = self.get_docker_client()
        (first, address), *others = self.links
        endpoint = client.client.api.create_endpoint_config(ipv4_address=address)
        name = first.network.name
        assert name is not None
        self._container = client.create(
            self.image,
            command=self._command,
            environment=self.env,
            name=self._name,
            network=name,
            networking_config={name: endpoint},
            ports=self.published,
            volumes={
                source: {"bind": mount["bind"], "mode": mount["mode"]}
                for source, mount in self.volumes.items()
            },
            **self._kwargs,
        )
        for network, address in others:
            network.network.connect(self._container, ipv4_address=address)
        client.start(self._container)
        return self

    def close(self) -> None:
        """Let go of the connection to the engine; the container itself stays."""
        self.get_docker_client().client.close()
