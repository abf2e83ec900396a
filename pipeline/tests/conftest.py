from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from live_node import LiveNode, live_node
from sparks import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# First: see `lanes`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that have a session have the same, so they are one lane."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only session of the run, and its JVM: a start takes seconds."""
    with shared_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """One node; each test has queues of its own there."""
    with live_node(tmp_path_factory.mktemp("live")) as node:
        yield node
