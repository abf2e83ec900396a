"""Planted bugs that do harm only on nodes with several rings: one takes what is another's."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ringmq_gm.core.events import Effect, Event, Persisted
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId

# By the chance of a run, then by the life of a node.
Shared = WeakKeyDictionary[random.Random, dict[MemberId, int]]


class TakesOthersSyncs(RingMember):
    """Takes the number of an op that another ring's store has written for one of its own."""

    _written: ClassVar[Shared] = WeakKeyDictionary()

    def __init__(self, *arguments: Any, chance: random.Random, **options: Any) -> None:
        super().__init__(*arguments, chance=chance, **options)
        self._of_node = self._written.setdefault(chance, {})

    def step(self, event: Event, *, now: float) -> list[Effect]:
        if isinstance(event, Persisted):
            newest = max(event.number, self._of_node.get(self.me, 0))
            self._of_node[self.me] = newest
            event = replace(event, number=min(newest, self.ops.last))
        return super().step(event, now=now)


class TakesOthersEpochs(RingMember):
    """A master believes that it has been followed, as another ring is in a later epoch."""

    _newest: ClassVar[Shared] = WeakKeyDictionary()

    def __init__(self, *arguments: Any, chance: random.Random, **options: Any) -> None:
        super().__init__(*arguments, chance=chance, **options)
        self._of_node = self._newest.setdefault(chance, {})

    def step(self, event: Event, *, now: float) -> list[Effect]:
        epoch = 0 if self.view is None else self.view.epoch
        newest = max(epoch, self._of_node.get(self.me, 0))
        self._of_node[self.me] = self._changer.lives.newest_epoch = newest
        return super().step(event, now=now)


RINGS_BUGS: tuple[type[RingMember], ...] = (TakesOthersSyncs, TakesOthersEpochs)
