"""Copies of a member, and keys that say whether two members are in the same state.

Both walk over all attributes, so that an attribute that is added later isn't forgotten. Frozen
values are shared between copies. Keys leave times out but for whether there is one: the
explorer has no clock, only an order of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from ringmq_gm.core.cache import OpCache
from ringmq_gm.core.changes import ViewChanger
from ringmq_gm.core.courting import Courting
from ringmq_gm.core.handover import Handover
from ringmq_gm.core.held_ops import HeldOps
from ringmq_gm.core.hold_off import HoldOff
from ringmq_gm.core.in_view import InView
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.master import Master
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.stages import Probing, Waiting
from ringmq_gm.core.stalls import DiskWatch
from ringmq_gm.core.telling import EarlyHello

T = TypeVar("T")

# The objects that belong to one member and change. All else is frozen, or a container of
# frozen things.
MUTABLE = (
    RingMember,
    Courting,
    DiskWatch,
    EarlyHello,
    ViewChanger,
    HoldOff,
    Lives,
    InView,
    HeldOps,
    OpCache,
    Handover,
    Probing,
    Waiting,
)
SHARED = frozenset({"_budgets", "_chance", "_timing"})
# A nonce tells a probe from those before it. That many suffice where links keep order.
NONCES = 4


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(value: object) -> tuple[str, ...]:
    """All attributes of one of `MUTABLE`, those of its base classes too."""
    kind = type(value)
    found = _NAMES.get(kind)
    if found is None:
        if is_dataclass(kind):
            found = tuple(field.name for field in fields(kind))
        else:
            found = tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
        found = _NAMES[kind] = found or tuple(vars(value))
    return found


def clone(value: T, copies: dict[int, Any] | None = None) -> T:
    """A copy that can be stepped without changing the original.

    `copies` holds those made so far: the ops that a member holds are its phase's too, and have
    to be one object in the copy as well.
    """
    kind: Any = type(value)
    if _is_container(kind):
        return value.copy()  # type: ignore[attr-defined, no-any-return]
    if not _is_mutable(kind):
        return value
    copies = {} if copies is None else copies
    copy: Any = copies.get(id(value))
    if copy is None:
        copy = copies[id(value)] = object.__new__(kind)
        for name in _names(value):
            item = getattr(value, name)
            object.__setattr__(copy, name, item if name in SHARED else clone(item, copies))
    return copy  # type: ignore[no-any-return]


@cache
def _is_container(kind: type) -> bool:
    return issubclass(kind, (dict, list, set, deque))


@cache
def _is_mutable(kind: type) -> bool:
    return issubclass(kind, MUTABLE)


def key_of(value: Any) -> Hashable:
    """Equal for members that behave alike from now on."""
    # The explorer spends a third of its time here: the kind is looked up, not asked for each time.
    kind = type(value)
    how = _KEYS.get(kind)
    if how is None:
        how = _KEYS[kind] = _way_of(kind)
    return how(value)


_KEYS: dict[type, Callable[[Any], Hashable]] = {}


def _way_of(kind: type) -> Callable[[Any], Hashable]:
    if issubclass(kind, InView):
        return _key_of_phase
    if issubclass(kind, MUTABLE):
        return _key_of_object
    if issubclass(kind, float):
        return _there
    if issubclass(kind, dict):
        return _key_of_dict
    if issubclass(kind, (set, frozenset)):
        return frozenset
    if issubclass(kind, (list, tuple, deque)) and not issubclass(kind, Enum):
        return _key_of_items
    return _itself


def _key_of_object(value: Any) -> Hashable:
    names = (name for name in _names(value) if name not in SHARED)
    return (type(value), *(_key_in(value, name) for name in names))


def _key_of_dict(value: dict[Any, Any]) -> Hashable:
    return frozenset((key_of(k), key_of(v)) for k, v in value.items())


def _key_of_items(value: Iterable[Any]) -> Hashable:
    return tuple(map(key_of, value))


def _there(_: float) -> Hashable:
    return True


def _itself(value: Any) -> Hashable:
    return value  # type: ignore[no-any-return]


def _key_in(value: Any, name: str) -> Hashable:
    item = getattr(value, name)
    return item % NONCES if name == "_nonce" else key_of(item)


# Of a phase: the same as of its member, or with a meaning of their own in the key.
_NOT_OF_PHASE = SHARED | {"ops", "view", "stable_sent", "safe_sent", "entered_at"}
# The watch on disks, which never comes to a look here (`transitions.TIMING`).
_NOT_OF_PHASE |= {"disks", "marks_at", "marks_sent"}


def _key_of_phase(phase: InView) -> Hashable:
    """A phase without details that make no difference any more: `stable_sent` and `safe_sent`
    are only ever compared with `stable` and `safe`, and `entered_at` matters while some member
    isn't synchronised."""
    names = (name for name in _names(phase) if name not in _NOT_OF_PHASE)
    is_all_synced = all(m.synced for m in phase.view.members)
    return (
        type(phase),
        *(key_of(getattr(phase, name)) for name in names),
        phase.has_to_tell and phase.downstream is not None,
        phase.entered_at if isinstance(phase, Master) and not is_all_synced else 0,
    )
