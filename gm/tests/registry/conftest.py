"""The engines, as the conformance suite sees them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    """Fails a test whose loop was left with tasks: `close` has to end what it began."""
    left: list[str] = []
    original = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def remember(loop: asyncio.AbstractEventLoop) -> None:
        left.extend(
            task.get_name()
            for task in asyncio.all_tasks(loop)
            if task.get_name().startswith("registry")
        )
        original(loop)

    asyncio.runners._cancel_all_tasks = remember  # type: ignore[attr-defined]
    yield
    asyncio.runners._cancel_all_tasks = original  # type: ignore[attr-defined]
    assert not left, f"tasks that outlived their registry: {left}"
