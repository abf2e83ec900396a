"""How an exchange of each type finds the bindings that match a message. Pure.

Each matcher keeps its bindings in the shape in which they are looked up, so that a message costs
what it matches and not what is bound: a table by routing key (direct), one set (fanout), a trie of
words (topic), and a table of header values (headers).

`match` yields destinations, some of them more than once: the router makes them unique. A binding
that is added must not be there yet, and one that is removed must be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from ringmq_node.model.fields import VOID, FieldValue, Headers, text
from ringmq_node.model.topology import X_MATCH, BindingRecord, ExchangeKind, HeaderMatch


class BindingEnd(NamedTuple):
    """An end of a binding. The id is that of the queue or exchange that was bound: a namesake
    which was declared later isn't meant."""

    to_exchange: bool
    name: str
    id: str


def end_of(binding: BindingRecord) -> BindingEnd:
    return BindingEnd(binding.to_exchange, binding.destination, binding.destination_id)


class Matcher(Protocol):
    """The bindings from one exchange."""

    def add(self, binding: BindingRecord) -> None: ...

    def remove(self, binding: BindingRecord) -> None: ...

    def match(self, routing_key: str, headers: Headers) -> Iterable[BindingEnd]: ...


# How many bindings lead to an end from the same place.
_Ends = dict[BindingEnd, int]


def _count(ends: _Ends, end: BindingEnd) -> None:
    ends[end] = ends.get(end, 0) + 1


def _discount(ends: _Ends, end: BindingEnd) -> None:
    if ends[end] == 1:
        del ends[end]
    else:
        ends[end] -= 1


class FanoutMatcher:
    def __init__(self) -> None:
        self._targets: _Ends = {}

    def add(self, binding: BindingRecord) -> None:
        _count(self._targets, end_of(binding))

    def remove(self, binding: BindingRecord) -> None:
        _discount(self._targets, end_of(binding))

    def match(self, routing_key: str, headers: Headers) -> Iterable[BindingEnd]:
        return self._targets


class DirectMatcher:
    def __init__(self) -> None:
        self._by_key: dict[str, _Ends] = {}

    def add(self, binding: BindingRecord) -> None:
        _count(self._by_key.setdefault(binding.routing_key, {}), end_of(binding))

    def remove(self, binding: BindingRecord) -> None:
        ends = self._by_key[binding.routing_key]
        _discount(ends, end_of(binding))
        if not ends:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Headers) -> Iterable[BindingEnd]:
        return self._by_key.get(routing_key, ())


def words_of(key: str) -> list[str]:
    """The words of a routing key or pattern. The empty key has none, "a." has two."""
    return key.split(".") if key else []


class _Words:
    """A place in the trie: those patterns that begin with the same words."""

    __slots__ = ("ends", "is_behind_hash", "next")

    def __init__(self, *, is_behind_hash: bool = False) -> None:
        self.next: dict[str, _Words] = {}
        self.ends: _Ends = {}
        # Whether the last word that leads here is `#`: it takes any further word.
        self.is_behind_hash = is_behind_hash


# By identity, in the order in which they were reached.
_Places = dict[_Words, None]


class TopicMatcher:
    """`*` is one word, `#` any number of words, also none.

    A key is matched word by word, with all places of the trie at once at which the words so far
    can be. A place counts once, however many ways lead to it: with `#.#.#.a` there would be a way
    for each division of the key.
    """

    def __init__(self) -> None:
        self._root = _Words()

    def add(self, binding: BindingRecord) -> None:
        place = self._root
        for word in words_of(binding.routing_key):
            if word not in place.next:
                place.next[word] = _Words(is_behind_hash=word == "#")
            place = place.next[word]
        _count(place.ends, end_of(binding))

    def remove(self, binding: BindingRecord) -> None:
        words = words_of(binding.routing_key)
        places = [self._root]
        for word in words:
            places.append(places[-1].next[word])
        _discount(places[-1].ends, end_of(binding))
        while words and not places[-1].next and not places[-1].ends:
            places.pop()
            del places[-1].next[words.pop()]

    def match(self, routing_key: str, headers: Headers) -> Iterator[BindingEnd]:
        places: _Places = {}
        _reach(self._root, places)
        for word in words_of(routing_key):
            reached: _Places = {}
            for place in places:
                if place.is_behind_hash:
                    _reach(place, reached)
                # A word of a message is no wildcard, whatever it looks like.
                if word not in ("*", "#"):
                    _reach(place.next.get(word), reached)
                _reach(place.next.get("*"), reached)
            places = reached
        for place in places:
            yield from place.ends


def _reach(place: _Words | None, reached: _Places) -> None:
    """Adds a place, and those behind each `#` that follows: `#` may be no word at all."""
    while place is not None and place not in reached:
        reached[place] = None
        place = place.next.get("#")


class HeadersMatcher:
    """A binding stands in the table under one of its headers, or under each if any will do. So
    only bindings that have a header with this message in common are looked at."""

    def __init__(self) -> None:
        # By name and value of a header, and by its name alone if any value will do.
        self._all: dict[tuple[str, FieldValue], dict[BindingRecord, None]] = {}
        self._any: dict[tuple[str, FieldValue], _Ends] = {}
        # Those that ask for nothing.
        self._always: _Ends = {}

    def add(self, binding: BindingRecord) -> None:
        is_any, wanted = wanted_headers(binding)
        end = end_of(binding)
        if is_any:
            for header in wanted:
                _count(self._any.setdefault(header, {}), end)
        elif wanted:
            self._all.setdefault(wanted[0], {})[binding] = None
        else:
            _count(self._always, end)

    def remove(self, binding: BindingRecord) -> None:
        is_any, wanted = wanted_headers(binding)
        end = end_of(binding)
        if is_any:
            for header in wanted:
                _discount(self._any[header], end)
                if not self._any[header]:
                    del self._any[header]
        elif wanted:
            del self._all[wanted[0]][binding]
            if not self._all[wanted[0]]:
                del self._all[wanted[0]]
        else:
            _discount(self._always, end)

    def match(self, routing_key: str, headers: Headers) -> Iterator[BindingEnd]:
        yield from self._always
        for name, value in headers.items():
            for header in ((name, value), (name, VOID)):
                yield from self._any.get(header, ())
                for binding in self._all.get(header, ()):
                    if _has_all(headers, wanted_headers(binding)[1]):
                        yield end_of(binding)


def _has_all(headers: Headers, wanted: Iterable[tuple[str, FieldValue]]) -> bool:
    return all(
        name in headers and (value == VOID or headers[name] == value) for name, value in wanted
    )


def wanted_headers(binding: BindingRecord) -> tuple[bool, list[tuple[str, FieldValue]]]:
    """Whether any of these will do, and the names and values that the binding asks for."""
    match = HeaderMatch(dict(binding.arguments).get(X_MATCH, text(HeaderMatch.ALL.value)).value)
    with_x = match in (HeaderMatch.ALL_WITH_X, HeaderMatch.ANY_WITH_X)
    wanted = [
        (name, value)
        for name, value in binding.arguments
        if name != X_MATCH and (with_x or not name.startswith("x-"))
    ]
    return match in (HeaderMatch.ANY, HeaderMatch.ANY_WITH_X), wanted


def matcher_for(kind: ExchangeKind) -> Matcher:
    match kind:
        case ExchangeKind.DIRECT:
            return DirectMatcher()
        case ExchangeKind.FANOUT:
            return FanoutMatcher()
        case ExchangeKind.TOPIC:
            return TopicMatcher()
        case ExchangeKind.HEADERS:
            return HeadersMatcher()
