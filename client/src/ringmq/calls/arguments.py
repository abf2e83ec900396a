"""The arguments of the public calls, held against their annotations.

A wrong type is refused by the argument's name before anything is done. Further in it would be an
AttributeError of ours or protobuf's "bad argument type", or it would pass: to protobuf True is 1,
and to Python "no" is true. An unknown option is refused as Python refuses an unknown argument.

The annotations are the only rule, so that callers with a type checker and callers without one are
told the same. Strings don't stand for members of enums. Every number will do for a float, and what
Python takes as an index for an int, but no bool.

`@checked_calls` is for classes, `@checked` for single calls. A call that is made for each message
isn't wrapped: it has `check_argument` look at what is not as usual.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isnan
from numbers import Real
from types import NoneType, UnionType
from typing import (
    Any,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ringmq.errors import WrongTypeError

R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """What an annotation takes, and how people say it."""

    text: str
    takes: Callable[[object], bool]
    #: The usual types, of which it takes every value: that is seen at once.
    exact: frozenset[type] = frozenset()

    def check(self, name: str, value: object) -> None:
        if type(value) not in self.exact and not self.takes(value):
            raise wrong_type(name, self.text, value)


def checked_calls(kind: type[T]) -> type[T]:
    """A class whose public methods check their arguments."""
    for name, each in list(vars(kind).items()):
        if inspect.isfunction(each) and not name.startswith("_"):
            setattr(kind, name, checked(each))
    return kind


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """The same call, which raises `WrongTypeError`, and `TypeError` for unknown options."""

    # When it is first called: annotations may name what is defined below.
    @functools.cache
    def signature() -> _Signature:
        return _Signature(call)

    if inspect.iscoroutinefunction(call):

        async def checks_and_awaits(*args: P.args, **kwargs: P.kwargs) -> object:
            signature().check(args, kwargs)
            return await call(*args, **kwargs)

        return cast("Callable[P, R]", functools.update_wrapper(checks_and_awaits, call))

    def checks(*args: P.args, **kwargs: P.kwargs) -> R:
        signature().check(args, kwargs)
        return call(*args, **kwargs)

    return functools.update_wrapper(checks, call)


def check_argument(name: str, value: object, hint: object) -> None:
    """Raises `WrongTypeError` unless `value` is what `hint` takes."""
    _kind_of(hint).check(name, value)


def check_options(listed: type, options: Mapping[str, object]) -> None:
    """Keyword arguments of a call, against the `TypedDict` that lists them."""
    kinds = _kinds_of(listed)
    for name, value in options.items():
        kind = kinds.get(name)
        if kind is None:
            raise TypeError(f"unexpected keyword argument {name!r}: there are {', '.join(kinds)}")
        kind.check(name, value)


def check_fields(made: object) -> None:
    """Of a dataclass: its `__post_init__`."""
    cls: type = type(made)
    for name, kind in _kinds_of(cls).items():
        kind.check(name, getattr(made, name))


def wrong_type(name: str, expected: str, value: object) -> WrongTypeError:
    return WrongTypeError(f"{name} is {expected}, not {_shown(value)}", metadata={"field": name})


class _Signature:
    """Of one call: what each of its arguments takes."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call.__qualname__
        self._positional: list[str] = []
        self._kinds: dict[str, Kind] = {}
        # Not `get_type_hints`, which looks for names of an alias where the alias is used.
        hints = inspect.get_annotations(call, eval_str=True)
        for each in inspect.signature(call).parameters.values():
            if each.kind is each.VAR_KEYWORD:
                (options,) = get_args(hints[each.name])
                self._kinds |= _kinds_of(options)
                continue
            if each.kind is each.POSITIONAL_OR_KEYWORD:
                self._positional.append(each.name)
            if each.name in hints:  # `self` isn't.
                self._kinds[each.name] = _kind_of(hints[each.name])

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        # Python itself says if they are too many.
        for name, value in zip(self._positional, args, strict=False):
            if name in self._kinds:
                self._kinds[name].check(name, value)
        for name, value in kwargs.items():
            if name not in self._kinds:
                raise TypeError(f"{self._call}() got an unexpected keyword argument {name!r}")
            self._kinds[name].check(name, value)


@functools.cache
def _kinds_of(kind: type) -> dict[str, Kind]:
    """Of the fields of a dataclass or a `TypedDict`."""
    # Those of a `TypedDict` are no text any more.
    hints = (
        get_type_hints(kind) if is_typeddict(kind) else inspect.get_annotations(kind, eval_str=True)
    )
    return {name: _kind_of(hint) for name, hint in hints.items()}


@functools.cache
def _kind_of(hint: Any) -> Kind:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Union or origin is UnionType:
        return _any_of([_kind_of(each) for each in args])
    if origin is Callable:
        return Kind("a function", callable)
    if origin is tuple:
        return _many(hint, f"a tuple of {_name(args[0])}", tuple)
    if origin is Sequence:
        return _many(hint, f"a sequence of {_name(args[0])}", Sequence)
    if origin is Iterable:
        return _many(hint, f"an iterable of {_name(args[0])}", Iterable)
    if origin is Mapping:
        return _mapping(_kind_of(args[0]), _kind_of(args[1]))
    if isinstance(hint, str):
        # `HeaderValue`, which names itself. `model.fields` looks at each as it converts it.
        return Kind("a header's value", lambda value: True)
    return _single(hint)


def _single(hint: Any) -> Kind:
    if hint is NoneType:
        return Kind("None", lambda value: value is None, frozenset({NoneType}))
    if hint is int:
        return Kind("an int", _is_int, frozenset({int}))
    if hint is float:
        return Kind("a number", _is_number, frozenset({int}))
    # Any other annotation is for a rule of its own, and fails the first call of whoever adds it.
    assert isinstance(hint, type), hint
    text = "bytes" if hint is bytes else _with_article(hint.__name__)
    if issubclass(hint, Enum):
        members = [each for each in hint.__members__ if each != "UNKNOWN"]
        text = f"{text} ({', '.join(members)})"
    return Kind(text, lambda value: isinstance(value, hint), frozenset({hint}))


def _is_int(value: object) -> bool:
    # A tuple is gone through in order, and a look at a protocol takes longer than all else here.
    return not isinstance(value, bool) and isinstance(value, (int, SupportsIndex))


def _is_number(value: object) -> bool:
    """Not NaN: a deadline that is neither before nor after any moment would never come."""
    return (
        not isinstance(value, bool) and isinstance(value, (float, int, Real)) and not isnan(value)
    )


def _any_of(kinds: Sequence[Kind]) -> Kind:
    *texts, last = [each.text for each in kinds]
    return Kind(
        f"{', '.join(texts)} or {last}",
        lambda value: any(each.takes(value) for each in kinds),
        frozenset().union(*(each.exact for each in kinds)),
    )


def _many(hint: Any, text: str, container: type) -> Kind:
    of = _kind_of(get_args(hint)[0])

    def takes(value: object) -> bool:
        # Text is a sequence of texts, which nobody means.
        if not isinstance(value, container) or isinstance(value, str | bytes):
            return False
        # What can be iterated only once is left to the call.
        return not isinstance(value, Sequence) or all(map(of.takes, value))

    return Kind(text, takes)


def _mapping(key: Kind, value: Kind) -> Kind:
    def takes(found: object) -> bool:
        return isinstance(found, Mapping) and all(
            key.takes(each) and value.takes(found[each]) for each in found
        )

    return Kind("a mapping with text as keys", takes)


def _name(hint: Any) -> str:
    return str(getattr(hint, "__name__", "values"))


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _shown(value: object) -> str:
    """With the value where that is short; never a body, which may be secret."""
    kind = type(value).__name__
    if value is None or isinstance(value, Enum):
        return str(value)
    if isinstance(value, str | int | float):
        return f"{reprlib.repr(value)} ({kind})"
    if isinstance(value, list | tuple):
        return (
            f"{kind} of {', '.join(sorted({type(each).__name__ for each in value})) or 'nothing'}"
        )
    return kind
