"""The programs in the containers of a cluster: RingMQ's nodes, and the etcd that they share."""

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from healthcheck import why_not_serving

ETCD = "etcd"
ETCD_PORT = 2379
NODE_PORT = 7800
DATA = "/data"

# The images on a machine with an image registry; deploy/Dockerfile and compose.yaml name the same.
REGISTRY_BASE = "python:3.12-slim"
REGISTRY_ETCD = "quay.io/coreos/etcd:v3.5.21"

READY_CALL_SECONDS_MAX = 2.0


@dataclass(frozen=True)
class Workload:
    """An image and how it becomes one member of a cluster.

    `environment` gives a member's variables by its name. `why_not_ready` is asked with the
    member's published address until it answers None; it has to speak the member's protocol, for
    the engine accepts connections to a published port whether anybody listens behind it or not.
    """

    image: str
    port: int
    why_not_ready: Callable[[str], str | None]
    command: Sequence[str] | None = None
    environment: Callable[[str], Mapping[str, str]] = lambda name: {}
    # Whether an error in a member's log fails the test.
    judged: bool = False


def ringmq_nodes(
    image: str, *, cluster_name: str = "ringmq", settings: Mapping[str, str] | None = None
) -> Workload:
    """RingMQ's nodes, configured over their environment as `deploy/compose.yaml` does it.

    `settings` are further variables, the same for all.
    """

    def environment(name: str) -> Mapping[str, str]:
        return {
            "RINGMQ_NODE": name,
            "RINGMQ_REGISTRY": f"etcd://{ETCD}:{ETCD_PORT}/ringmq",
            "RINGMQ_LISTEN": f"0.0.0.0:{NODE_PORT}",
            "RINGMQ_ADVERTISE": f"{name}:{NODE_PORT}",
            "RINGMQ_DATA": DATA,
            "RINGMQ_CLUSTER": cluster_name,
            **(settings or {}),
        }

    def why_not_ready(address: str) -> str | None:
        return why_not_serving(address, READY_CALL_SECONDS_MAX)

    return Workload(image, NODE_PORT, why_not_ready, environment=environment, judged=True)


def etcd_server(image: str) -> Workload:
    """One etcd, which keeps its data over restarts."""
    command = (
        "etcd",
        f"--name={ETCD}",
        f"--data-dir={DATA}/etcd",
        f"--listen-client-urls=http://0.0.0.0:{ETCD_PORT}",
        f"--advertise-client-urls=http://{ETCD}:{ETCD_PORT}",
    )
    return Workload(image, ETCD_PORT, why_etcd_not_healthy, command=command)


def why_etcd_not_healthy(address: str) -> str | None:
    """None if the etcd at `address` can commit, else its answer."""
    try:
        with urllib.request.urlopen(
            f"http://{address}/health", timeout=READY_CALL_SECONDS_MAX
        ) as answer:
            body: dict[str, str] = json.load(answer)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None if body.get("health") == "true" else f"it says {body}"
