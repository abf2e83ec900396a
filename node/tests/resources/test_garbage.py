"""The collector is kept away from objects that live as long as their queues."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ringmq_node.resources.garbage import THRESHOLDS, Garbage, LongCollections


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def looked_at(objects: list[Cycle]) -> int:
    """How many of these a collection looks at. A count of all that are frozen would not tell: those
    of earlier tests die meanwhile."""
    ids = {id(one) for one in objects}
    return sum(id(one) in ids for one in gc.get_objects())


def test_a_process_that_has_served_a_node_has_its_collector_back() -> None:
    """A test of bad settings did not, and long collections of later tests froze what they left."""
    before = gc.get_threshold(), [*gc.callbacks]
    cycles = [Cycle() for _ in range(10)]
    with Garbage.of_a_node():
        assert looked_at(cycles) == 0
        assert gc.get_threshold() == THRESHOLDS
        assert len(gc.callbacks) == len(before[1]) + 1
    assert looked_at(cycles) == 10
    assert (gc.get_threshold(), gc.callbacks) == before


def test_queues_that_are_opened_are_not_looked_at_again() -> None:
    garbage = Garbage(opened_max=10)
    queues = [Cycle() for _ in range(10)]
    for _ in queues:
        assert looked_at(queues) == 10
        garbage.opened()
    assert looked_at(queues) == 0


def test_views_are_not_looked_at_again() -> None:
    """Of ten thousand rings that a dead node was in: one collection held the loop for 0.4 s."""
    garbage = Garbage(views_max=10)
    views = [Cycle() for _ in range(10)]
    for _ in views:
        assert looked_at(views) == 10
        garbage.view_entered()
    assert looked_at(views) == 0


@pytest.mark.parametrize(("long_s", "is_frozen"), [(0.0, True), (10.0, False)])
def test_what_a_long_collection_has_left_is_not_looked_at_again(
    long_s: float, is_frozen: bool
) -> None:
    """When a node dies, ten thousand rings have proposals before the first has its new view."""
    proposals = [Cycle() for _ in range(100)]
    watch = LongCollections(long_s=long_s).collected
    gc.callbacks.append(watch)
    try:
        gc.collect(1)
        assert looked_at(proposals) == 100
        gc.collect()
    finally:
        gc.callbacks.remove(watch)
    assert looked_at(proposals) == (0 if is_frozen else 100)
