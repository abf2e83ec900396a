"""The client without asyncio has the names and the arguments of the other one."""

from __future__ import annotations

import inspect

import pytest

import ringmq
from ringmq.operator import Operator
from ringmq.publishing.publisher import Publisher
from ringmq.reading.reader import Reader
from ringmq.reading.sync_reader import SyncReader
from ringmq.sync import SyncClient, SyncConsumer, SyncPublisher
from ringmq.sync_operator import SyncOperator
from ringmq.sync_topology import SyncTopology
from ringmq.topology import TopologyCalls

PAIRS: list[tuple[type, type]] = [
    (ringmq.Client, SyncClient),
    (Operator, SyncOperator),
    (TopologyCalls, SyncTopology),
    (Publisher, SyncPublisher),
    (ringmq.Consumer, SyncConsumer),
    (Reader, SyncReader),
]
# They return the future of a running loop.
ASYNC_ONLY = {
    (Publisher, "publishing"),
    (Publisher, "publishing_batch"),
    (Publisher, "publish_nowait"),
}


def public(kind: type) -> dict[str, object]:
    return {name: each for name, each in vars(kind).items() if not name.startswith("_")}


def arguments(call: object) -> list[tuple[str, object, object]]:
    assert callable(call)
    found = inspect.signature(call).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(("waited", "waits"), PAIRS, ids=lambda kind: kind.__name__)
def test_each_name_is_there_with_its_arguments(waited: type, waits: type) -> None:
    there = public(waits)
    for name, each in public(waited).items():
        if (waited, name) in ASYNC_ONLY or (name == "open" and "close" in there):
            continue  # The second is opened when it is made.
        assert name in there, f"{waits.__name__} lacks {name}"
        if callable(each):
            assert arguments(there[name]) == arguments(each), name
