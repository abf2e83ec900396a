"""The engines, as the conformance suite sees them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import loops
import pytest
from etcd_server import EtcdCluster

from ringmq_gm.registry.base import Registry
from ringmq_gm.registry.url import open_registry

_numbers = itertools.count()


@dataclass(frozen=True)
class Engine:
    """One empty registry, at `url`."""

    name: str
    url: str

    def open(self) -> Registry:
        """A new connection to it."""
        return open_registry(self.url)


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member, for all tests that leave it alone; each takes a prefix of its own."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "etcd"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return Engine("sqlite", f"sqlite://{tmp_path / 'registry.db'}")
    etcd: EtcdCluster = request.getfixturevalue("shared_etcd")
    return Engine("etcd", f"etcd://{','.join(etcd.endpoints)}/t{next(_numbers)}")


@pytest.fixture(autouse=True)
def _no_task_is_left() -> Iterator[None]:
    """Fails a test whose registry still has tasks when the loop ends: `close` ends all of them."""
    loops.left_tasks.clear()
    yield
    left = [name for name in loops.left_tasks if name.startswith("registry")]
    assert not left, f"tasks that outlived their registry: {left}"
