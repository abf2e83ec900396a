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
from operator import attrgetter
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
from ringmq_gm.core.views import MemberId, View

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


# Values of these are themselves in a copy and in a key: they are asked for first, as most are.
PLAIN = frozenset({int, str, bytes, bool, type(None), MemberId, View})


class _Plan:
    """The attributes of one of `MUTABLE`, without `left_out`, and how to get all at once."""

    def __init__(self, value: object, left_out: frozenset[str] = frozenset()) -> None:
        kind = type(value)
        if is_dataclass(kind):
            names = tuple(field.name for field in fields(kind))
        else:
            # Those of its base classes too.
            slots = (getattr(base, "__slots__", ()) for base in kind.__mro__)
            names = tuple(name for found in slots for name in found) or tuple(vars(value))
        self.names = tuple(name for name in names if name not in left_out)
        if len(self.names) == 1:
            name = self.names[0]
            self.values_of: Callable[[Any], tuple[Any, ...]] = lambda one: (getattr(one, name),)
        else:
            self.values_of = attrgetter(*self.names)


_PLANS: dict[type, _Plan] = {}
_KEY_PLANS: dict[type, _Plan] = {}


def clone(value: T) -> T:
    """A copy that can be stepped without changing the original."""
    return _clone(value, {})  # type: ignore[no-any-return]


def _clone(value: Any, copies: dict[int, Any]) -> Any:
    """`copies` holds those made so far: the ops that a member holds are its phase's too, and have
    to be one object in the copy as well."""
    kind: Any = type(value)
    if _is_container(kind):
        return value.copy()
    if not _is_mutable(kind):
        return value
    copy: Any = copies.get(id(value))
    if copy is None:
        plan = _PLANS.get(kind) or _PLANS.setdefault(kind, _Plan(value))
        copy = copies[id(value)] = object.__new__(kind)
        for name, item in zip(plan.names, plan.values_of(value), strict=True):
            if type(item) not in PLAIN and name not in SHARED:
                item = _clone(item, copies)
            setattr(copy, name, item)
    return copy


@cache
def _is_container(kind: type) -> bool:
    return issubclass(kind, (dict, list, set, deque))


@cache
def _is_mutable(kind: type) -> bool:
    return issubclass(kind, MUTABLE)


def key_of(value: Any) -> Hashable:
    """Equal for members that behave alike from now on."""
    # The explorer spends a fifth of its time here: the kind is looked up, not asked for each time.
    kind = type(value)
    if kind in PLAIN:
        return value  # type: ignore[no-any-return]
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
    kind = type(value)
    plan = _KEY_PLANS.get(kind) or _KEY_PLANS.setdefault(kind, _Plan(value, SHARED))
    return (kind, *_keys_of(plan, value))


def _keys_of(plan: _Plan, value: Any) -> list[Any]:
    keys: list[Any] = [
        item if type(item) in PLAIN else key_of(item) for item in plan.values_of(value)
    ]
    if "_nonce" in plan.names:
        at = plan.names.index("_nonce")
        keys[at] %= NONCES
    return keys


def _key_of_dict(value: dict[Any, Any]) -> Hashable:
    return frozenset((key_of(k), key_of(v)) for k, v in value.items())


def _key_of_items(value: Iterable[Any]) -> Hashable:
    return tuple(map(key_of, value))


def _there(_: float) -> Hashable:
    return True


def _itself(value: Any) -> Hashable:
    return value  # type: ignore[no-any-return]


# Of a phase: the same as of its member, or with a meaning of their own in the key.
_NOT_OF_PHASE = SHARED | {"ops", "view", "stable_sent", "safe_sent", "entered_at"}
# The watch on disks, which never comes to a look here (`transitions.TIMING`).
_NOT_OF_PHASE |= {"disks", "marks_at", "marks_sent"}


def _key_of_phase(phase: InView) -> Hashable:
    """A phase without details that make no difference any more: `stable_sent` and `safe_sent`
    are only ever compared with `stable` and `safe`, and `entered_at` matters while some member
    isn't synchronised."""
    kind = type(phase)
    plan = _KEY_PLANS.get(kind) or _KEY_PLANS.setdefault(kind, _Plan(phase, _NOT_OF_PHASE))
    is_all_synced = all(m.synced for m in phase.view.members)
    return (
        kind,
        *_keys_of(plan, phase),
        phase.has_to_tell and phase.downstream is not None,
        phase.entered_at if isinstance(phase, Master) and not is_all_synced else 0,
    )


def all_of(value: Any) -> Any:
    """Every field of a member, and of all that belongs to it."""
    if isinstance(value, (list, tuple, deque)):
        return [all_of(item) for item in value]
    if not isinstance(value, MUTABLE):
        return value
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    names = sorted(slots | getattr(value, "__dict__", {}).keys())
    return {name: all_of(getattr(value, name)) for name in names}
