"""A story on several hosts: nodes, an etcd and clients in namespaces, with real cuts between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from etcd_server import require_etcd
from loops import run

from nemesis.cluster import Cluster
from nemesis.etcd_host import EtcdHost
from nemesis.network import Network, NoNamespacesError
from nemesis.programs import client_starter

ETCD = "etcd"


def play(
    path: Path,
    clients: Sequence[str],
    story: Callable[[Cluster, Network], Awaitable[None]],
    **options: Any,
) -> None:
    """On hosts for the nodes a, b and c, for etcd, and for each of `clients`; `options` are
    `Cluster`'s."""
    require_etcd()
    client_starter()

    async def on_hosts(network: Network) -> None:
        with EtcdHost(network, ETCD, path) as etcd:
            await etcd.wait_ready()
            async with Cluster(path, registry=etcd.url, network=network, **options) as cluster:
                await story(cluster, network)

    try:
        with Network("a", "b", "c", ETCD, *clients) as network:
            run(on_hosts(network))
    except NoNamespacesError as error:
        pytest.skip(str(error))
