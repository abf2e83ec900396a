"""Consumers that share a window with consumers of other queues, and who is told that it lacks room.

The window belongs to whoever has the streams. A consumer of it has a *share*: a limit beside its
prefetch, which is changed from outside. It is *short* while a message is there for it that its
share alone keeps from it. It is told so once, with the size of the message, and once that it isn't
short any more: nothing is left for it, or its own prefetch is full. So an idle consumer doesn't
keep what another queue has messages for (`ringmq_base.window`). Pure.
"""

from __future__ import annotations

from typing import Protocol

from ringmq_node.queue.effects import TellShort


class Sharer(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def room_messages(self) -> int:
        """With its share."""
        ...


class Sharing:
    """Of one queue. What a call costs doesn't depend on how many consumers there are."""

    def __init__(self) -> None:
        # Their share is full, and they don't know yet that a message is there.
        self._untold: dict[int, None] = {}
        # They have been told that they are short, of a message of this size.
        self._told: dict[int, int] = {}
        # Of these: they could take a message, or no share would help them.
        self._with_room: dict[int, None] = {}
        self._full: dict[int, None] = {}

    def place(self, consumer: Sharer, *, could_take: bool) -> None:
        """`could_take`: it could be given a message if its share allowed that."""
        one = consumer.id
        for places in (self._untold, self._with_room, self._full):
            places.pop(one, None)
        if one in self._told:
            if not could_take:
                self._full[one] = None
            elif consumer.room_messages > 0:
                self._with_room[one] = None
        elif could_take and consumer.room_messages <= 0:
            self._untold[one] = None

    def leave(self, consumer: int) -> None:
        for places in (self._untold, self._told, self._with_room, self._full):
            places.pop(consumer, None)

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)

    @property
    def has_told(self) -> bool:
        return bool(self._told)

    def tell(self, front_bytes: int) -> list[TellShort]:
        """A message of this size is there."""
        told = [
            TellShort(consumer, short=True, needs_bytes=front_bytes) for consumer in self._untold
        ]
        self._told |= dict.fromkeys(self._untold, front_bytes)
        self._untold.clear()
        return told

    def too_large(self, consumer: int, front_bytes: int) -> list[TellShort]:
        """Its share has room for a message, but not for one of this size."""
        if self._told.get(consumer) == front_bytes:
            return []
        self._told[consumer] = front_bytes
        self._with_room[consumer] = None
        return [TellShort(consumer, short=True, needs_bytes=front_bytes)]

    def untell(self, *, empty: bool) -> list[TellShort]:
        """Those that are short no more; `empty`: no message is there."""
        over = [*self._full, *(self._with_room if empty else ())]
        self._full.clear()
        if empty:
            self._with_room.clear()
        for consumer in over:
            del self._told[consumer]
        return [TellShort(consumer, short=False, needs_bytes=0) for consumer in over]

    def check(self) -> None:
        assert not self._untold.keys() & self._told.keys()
        assert self._with_room.keys() | self._full.keys() <= self._told.keys()
        assert not self._with_room.keys() & self._full.keys()
