"""What the strings of options stand for, and the error that names the option. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, TypeVar

_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# Spark hands these to every source.
_SPARKS_OWN: Final = {"path", "checkpointlocation", "queryname"}

E = TypeVar("E", bound=Enum)


class OptionError(ValueError):
    """An option of the source or of the sink can't be used. `option` names it."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"option {option!r}: {why}")
        self.option = option


def known_only(options: Mapping[str, str], known: Iterable[str], whose: str) -> dict[str, str]:
    """The options, by the names that are `known`. Raises `OptionError` for one that isn't."""
    by_lower = {name.lower(): name for name in known}
    given = {}
    for name, value in options.items():
        found = by_lower.get(name.lower())
        if found is None and name.lower() in _SPARKS_OWN:
            continue
        if found is None:
            near = difflib.get_close_matches(name.lower(), by_lower, n=1)
            hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
            raise OptionError(name, f"{whose} has no such option{hint}")
        given[found] = value
    return given


def endpoints(given: Mapping[str, str]) -> tuple[str, ...]:
    value = given.get("endpoints", "")
    found = tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))
    if not found:
        raise OptionError("endpoints", "give the address of at least one node, as host:port")
    for address in found:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise OptionError("endpoints", f"{address!r} is not host:port")
    return found


def text(name: str, value: str) -> str:
    if not value.strip():
        raise OptionError(name, "it is empty")
    return value.strip()


def queue_name(name: str, value: str) -> str:
    """As it is: a queue's name may begin or end with spaces."""
    text(name, value)
    return value


def positive(name: str, value: str) -> int:
    if not value.strip().isdecimal() or int(value) < 1:
        raise OptionError(name, f"{value!r} is not a number of 1 or more")
    return int(value)


def boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(name, f"{value!r} is neither true nor false")
    return value.strip().lower() == "true"


def size(name: str, value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    count = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    if not count:
        raise OptionError(name, f"{value!r} is not a size, such as 67108864, 512k or 64m")
    return count


def duration(name: str, value: str) -> float:
    found = _DURATION.fullmatch(value.strip())
    seconds = float(found[1]) * _SECONDS[(found[2] or "").lower()] if found else 0.0
    if not seconds:
        raise OptionError(name, f"{value!r} is not a duration, such as 30s, 500ms or 2m")
    return seconds


def payload(name: str, value: str) -> int | None:
    """How many bytes of each body; None: all."""
    asked = value.strip().lower()
    if asked in ("full", "none"):
        return 0 if asked == "none" else None
    kind, colon, count = asked.partition(":")
    if kind != "head" or not colon:
        raise OptionError(name, f"{value!r} is none of 'full', 'none' and 'head:N'")
    return positive(name, count)


def one_of(kind: type[E]) -> Callable[[str, str], E]:
    def read(name: str, value: str) -> E:
        try:
            return kind(value.strip().lower())
        except ValueError:
            names = ", ".join(repr(each.value) for each in kind)
            raise OptionError(name, f"{value!r} is none of {names}") from None

    return read
