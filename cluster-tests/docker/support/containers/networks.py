"""The networks of a cluster in containers, laid out so that a cut is a cut.

    ring       the traffic between nodes. Internal: it leads nowhere else.
    registry   nodes and etcd. Internal, too.
    <member>   one for each member: its published port, and so its clients.

Three, so that they can be cut one by one. A node that loses the ring keeps its clients and the
registry: the case in which a master that sees nobody may not vote the others out. One client
network for *each* node, because nodes that shared one would find each other over it, and cutting
the ring would cut nothing.

Every address is fixed when the cluster is made and written into each container's /etc/hosts. No
name server takes part: a cut peer's name still resolves, as in a real partition, and what is sent
to it goes nowhere; after the cut heals it has the address that it had.
"""

import ipaddress
from dataclasses import dataclass

import docker
from docker.errors import APIError
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool

RING = "ring"
REGISTRY = "registry"

# Addresses below are the bridge's own; member 0 gets this host number, member 1 the next.
FIRST_HOST_NUMBER = 10

CREATION_ATTEMPTS_MAX = 5


@dataclass(frozen=True)
class FixedNetwork:
    """A bridge network whose addresses are ours to give out."""

    network: Network
    subnet: ipaddress.IPv4Network

    def address(self, member_index: int) -> str:
        """The address of the cluster's member number `member_index` (from 0) here."""
        return str(self.subnet[FIRST_HOST_NUMBER + member_index])


def create_network(
    client: docker.DockerClient, name: str, labels: dict[str, str], *, internal: bool
) -> FixedNetwork:
    """A bridge network with a subnet that the engine finds free.

    Containers get fixed addresses only in a subnet that was asked for by name, and only the engine
    knows which are free: so it picks one, and the network is made again with that one asked for.
    Somebody may take it in between; then the next is tried. `docker.errors.APIError` at the end.
    """
    attempt = 0
    while True:
        attempt += 1
        probe = client.networks.create(name, driver="bridge", internal=internal, labels=labels)
        probe.reload()
        subnet = ipaddress.IPv4Network(probe.attrs["IPAM"]["Config"][0]["Subnet"])
        probe.remove()
        pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            network = client.networks.create(
                name,
                driver="bridge",
                internal=internal,
                labels=labels,
                ipam=IPAMConfig(pool_configs=[pool]),
            )
        except APIError:
            if attempt == CREATION_ATTEMPTS_MAX:
                raise
            continue
        return FixedNetwork(network, subnet)
