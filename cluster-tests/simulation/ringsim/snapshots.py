"""Copies of a member, and keys that say whether two are in the same state.

Both walk over all attributes, so that one which is added later isn't forgotten.
Frozen values are shared between copies. Times are left out of keys but for
whether there is one: the explorer has no clock, only an order of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from ringmq_gm.core.cache import OpCache
from ringmq_gm.core.changes import Known, Probe, ViewChanger
from ringmq_gm.core.handover import Handover
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.place import Place, Progress

T = TypeVar("T")

# What belongs to one member and changes. All else is frozen, or a container of frozen things.
MUTABLE = (RingMember, ViewChanger, Known, Place, Progress, OpCache, Handover, Probe)
SHARED = frozenset({"_chance", "_timing"})
# A nonce tells a probe from those before it. That many suffice where links keep order.
NONCES = 4


_SLOTS: dict[type, tuple[str, ...]] = {}


def _names(value: object) -> Iterable[str]:
    """All attributes of one of `MUTABLE`."""
    kind = type(value)
    if kind not in _SLOTS:
        if is_dataclass(kind):
            _SLOTS[kind] = tuple(field.name for field in fields(kind))
        else:
            _SLOTS[kind] = tuple(getattr(kind, "__slots__", ()))
    return _SLOTS[kind] or vars(value)


def clone(value: T) -> T:
    """A copy that can be stepped without changing the original."""
    if isinstance(value, MUTABLE):
        copy: Any = object.__new__(type(value))
        for name in _names(value):
            item = getattr(value, name)
            object.__setattr__(copy, name, item if name in SHARED else clone(item))
        return copy  # type: ignore[no-any-return]
    if isinstance(value, (dict, list, set, deque)):
        return value.copy()  # type: ignore[return-value]
    return value


def _key_of_all(value: Any) -> tuple[Hashable, ...]:
    return tuple(
        value._nonce % NONCES if name == "_nonce" else key_of(getattr(value, name))
        for name in _names(value)
        if name not in SHARED
    )


def _place_in(member: RingMember) -> tuple[Hashable, ...]:
    """The place without what makes no difference any more: `stable_sent` is only ever
    compared with `stable`, and `entered_at` asked where somebody isn't synchronised."""
    place = member._place
    if place is None:
        return ()
    names = (name for name in _names(place) if name not in ("view", "stable_sent", "entered_at"))
    is_all_synced = all(m.synced for m in place.view.members)
    return (
        *(key_of(getattr(place, name)) for name in names),
        place.stable_sent < member.cache.stable and place.downstream is not None,
        0 if is_all_synced else place.entered_at,
    )


def key_of(value: Any) -> Hashable:
    """Equal for members that behave alike from now on."""
    if isinstance(value, RingMember):
        return (*_key_of_all(value), *_place_in(value))
    if isinstance(value, Place):
        return ()
    if isinstance(value, MUTABLE):
        return _key_of_all(value)
    if isinstance(value, float):
        return True
    if isinstance(value, dict):
        return tuple(sorted(((key_of(k), key_of(v)) for k, v in value.items()), key=repr))
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if isinstance(value, (list, tuple, deque)) and not isinstance(value, Enum):
        return tuple(key_of(item) for item in value)
    return value  # type: ignore[no-any-return]
