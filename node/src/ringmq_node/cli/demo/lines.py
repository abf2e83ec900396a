"""The demo's messages: the lines of a file, again and again, each with its index in front.

`lines.txt` beside this module is what `ringmq demo` takes without `--input`: nineteen
of Shakespeare's sonnets. A body is nine digits, a tab and the line, so that what comes
out of the queue can be compared byte by byte with what went in.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

INDEX_DIGITS = 9
COUNT_MAX = 10**INDEX_DIGITS
# The whole file is held in memory.
INPUT_BYTES_MAX = 1024 * 1024 * 1024
# The index of a body that isn't what was published.
DAMAGED = -1


class InputError(ValueError):
    """A file that can't be the demo's input."""


class Lines:
    """Immutable. `bodies(first, count)` and its inverse, `indexes`."""

    def __init__(self, path: Path | None = None) -> None:
        """The lines of `path`, or those that come with the package. Raises `InputError`."""
        if path is None:
            content = files(__package__).joinpath("lines.txt").read_bytes()
        else:
            if path.stat().st_size > INPUT_BYTES_MAX:
                raise InputError(f"{path}: larger than {INPUT_BYTES_MAX} bytes")
            content = path.read_bytes()
        self._lines = content.splitlines()
        if not self._lines:
            raise InputError(f"{path}: there is no line in it")

    def __len__(self) -> int:
        return len(self._lines)

    def bodies(self, first: int, count: int) -> list[bytes]:
        """The bodies of the messages `first` to `first + count - 1`."""
        lines, size = self._lines, len(self._lines)
        return [b"%09d\t%b" % (index, lines[index % size]) for index in range(first, first + count)]

    def indexes(self, bodies: Sequence[bytes]) -> Sequence[int]:
        """The index of each; `DAMAGED` where a body isn't exactly what was published."""
        first = self._index(bodies[0])
        # Nearly always they follow each other: then one comparison is enough.
        if self.bodies(first, len(bodies)) == bodies:
            return range(first, first + len(bodies))
        found = map(self._index, bodies)
        return [
            index if self.bodies(index, 1) == [body] else DAMAGED
            for index, body in zip(found, bodies, strict=True)
        ]

    @staticmethod
    def _index(body: bytes) -> int:
        digits = body[:INDEX_DIGITS]
        return int(digits) if len(digits) == INDEX_DIGITS and digits.isdigit() else 0
