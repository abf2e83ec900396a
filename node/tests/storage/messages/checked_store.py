"""A message store that knows what has to be in it."""

from __future__ import annotations

from node.tests.storage.messages.verbs import (
    SMALL,
    block_of,
    open_store,
    put_all,
    step,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage.limits import StoreLimits

SIZE = 800


class CheckedStore:
    """A store, and the messages that have to be in it, by number."""

    def __init__(self, disk: SimulatedDisk, count: int, limits: StoreLimits = SMALL) -> None:
        self.disk = disk
        self.limits = limits
        self.store = open_store(disk, limits)
        self.store.start_collecting()
        places = put_all(self.store, disk, [block_of(n, SIZE) for n in range(count)])
        self.live = dict(enumerate(places))

    def keep(self, *numbers: int) -> None:
        for number in [*self.live]:
            if number not in numbers:
                self.release(number)

    def release(self, number: int) -> None:
        self.store.release(self.live.pop(number))

    def put(self, number: int) -> None:
        (self.live[number],) = put_all(self.store, self.disk, [block_of(number, SIZE)])

    def restart(self) -> None:
        self.store = open_store(self.disk, self.limits)
        for location in self.live.values():
            self.store.share(location)
        self.store.start_collecting()
        self.check()

    def check(self) -> None:
        self.store.check()
        for number, location in self.live.items():
            assert self.store.read(location).data == block_of(number, SIZE).data, number
        assert self.store.statistics().records_now == len(self.live)

    def steps_until(self, kind: type, most: int = 100) -> None:
        """Runs steps until one of this kind is done."""
        for _ in range(most):
            if isinstance(step(self.store, self.disk), kind):
                return
        raise AssertionError(f"no {kind.__name__} came")
