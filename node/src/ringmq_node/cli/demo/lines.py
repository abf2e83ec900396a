"""The demo's messages: the lines of a file, again and again, each with its index in front.

Without `--input`, `ringmq demo` takes `lines.txt` beside this module: nineteen of
Shakespeare's sonnets. A body is nine digits, a tab and the line. The index in front tells
which bytes were published, so that each delivered body can be compared with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

INDEX_DIGITS = 9
COUNT_MAX = 10**INDEX_DIGITS
# The whole file is held in memory.
INPUT_BYTES_MAX = 1024 * 1024 * 1024
# The index of a body that differs from the published one.
DAMAGED = -1


class InputError(ValueError):
    """The file can't be the demo's input."""


class Lines:
    """Immutable. `bodies(first, count)` and its inverse, `indexes`."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the lines of `path`, or of the package's own file. Raises `InputError`."""
        if path is None:
            content = files(__package__).joinpath("lines.txt").read_bytes()
        else:
            size_bytes = path.stat().st_size
            if size_bytes > INPUT_BYTES_MAX:
                raise InputError(f"{path} has {size_bytes} bytes; at most {INPUT_BYTES_MAX} fit")
            content = path.read_bytes()
        self._lines = content.splitlines()
        if not self._lines:
            raise InputError(f"{path} is empty: the demo publishes its lines")

    def __len__(self) -> int:
        return len(self._lines)

    def bodies(self, first: int, count: int) -> list[bytes]:
        """The bodies of the messages `first` to `first + count - 1`."""
        lines, size = self._lines, len(self._lines)
        return [b"%09d\t%b" % (index, lines[index % size]) for index in range(first, first + count)]

    def indexes(self, bodies: Sequence[bytes]) -> Sequence[int]:
        """The index of each body; `DAMAGED` where a body differs from the published one."""
        first = self._index(bodies[0])
        # Delivered bodies nearly always follow each other: then one comparison is enough.
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
