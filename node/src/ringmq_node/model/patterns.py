r"""The patterns of policies: RE2's expressions, and one form that RE2 lacks. Pure.

A match takes time that is linear in the name. Python's own `re` tries all ways through a pattern
such as `(a+)+$`, and would hold the event loop for ever. For that, RE2 has no lookarounds.

RabbitMQ's own example of a policy for all queues is `^(?!amq\.).*`: "not those that begin with
amq.". So one lookaround is taken, `^(?!X)Y` with X and Y in RE2's syntax, as it says the same as
two expressions: Y matches the name from its start, and X doesn't. That is exact only if the first
`)` outside of X's groups, classes and escapes ends X, and if Y has no alternatives at its outermost
level: of `^(?!X)a|b`, b isn't bound by the lookahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ringmq_node.model.reasons import BrokerError, bad_request

_UNLESS = "^(?!"
# A class from its "[" on. A "]" that comes first is one of its letters.
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]")


class Pattern(Protocol):
    """A compiled regular expression."""

    def search(self, text: str, /) -> object | None: ...


@dataclass(frozen=True, slots=True)
class _Unless:
    """`^(?!X)Y`: `excluded` is `^(?:X)`, and `rest` `^(?:Y)`."""

    excluded: Pattern
    rest: Pattern

    def search(self, text: str, /) -> object | None:
        return None if self.excluded.search(text) is not None else self.rest.search(text)


def compiled(pattern: str) -> Pattern:
    """Searches anywhere in a name unless it is anchored. Raises `BrokerError`."""
    if not pattern.startswith(_UNLESS):
        return _expression(pattern, pattern)
    if r"\Q" in pattern:
        raise _refused(pattern, r"beside a lookahead \Q isn't taken")
    outermost = _outermost(pattern, len(_UNLESS))
    end = next((at for at in outermost if pattern[at] == ")"), None)
    if end is None:
        raise _refused(pattern, f"there is no ) for {_UNLESS}")
    excluded, rest = pattern[len(_UNLESS) : end], pattern[end + 1 :]
    for at in _outermost(rest, 0):
        # Within `(?:...)` an odd one would close that group, and a(b) would be read from a)(b.
        if rest[at] == ")":
            raise _refused(pattern, "unexpected )")
        raise _refused(pattern, f"alternatives behind {_UNLESS}...) have to be in a group, (a|b)")
    # A flag such as (?i) holds to the end of the group that it stands in, as in Perl.
    return _Unless(_expression(f"^(?:{excluded})", pattern), _expression(f"^(?:{rest})", pattern))


def _outermost(pattern: str, start: int) -> Iterator[int]:
    """Where `)` and `|` stand outside of groups, classes and escapes, from `start` on."""
    depth, at = 0, start
    while at < len(pattern):
        letter = pattern[at]
        if letter == "[":
            found = _CLASS.match(pattern, at)
            if found is None:
                # RE2 says what is wrong with it.
                return
            at = found.end()
            continue
        if letter in ")|" and depth == 0:
            yield at
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        at += 2 if letter == "\\" else 1


def _expression(expression: str, pattern: str) -> Pattern:
    """RE2's; `pattern` is the whole one, for errors."""
    # Imported here: most clusters have no policies, and every command would pay for it.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        found: Pattern = re2.compile(expression, options)
        return found
    except re2.error as error:
        raise _refused(pattern, _message(error)) from error


def _message(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    said = said.decode() if isinstance(said, bytes) else str(said)
    if "invalid perl operator" in said:
        said += f"; of lookarounds one is taken, {_UNLESS}...) at the start"
    return said


def _refused(pattern: str, why: str) -> BrokerError:
    return bad_request(f"pattern {pattern!r}: {why}", field="pattern")
