"""Which of the names in a queue's folder are journals and segments."""

from __future__ import annotations

import re
from collections.abc import Iterable

# As the writers name them: no other digits, no zeros before.
_NUMBER = r"(0|[1-9][0-9]{0,14})"
_JOURNAL = re.compile(_NUMBER + r"\.jif(\.bad)?")
_SEGMENT = re.compile(_NUMBER + r"\.idx")


def journals(names: Iterable[str]) -> list[tuple[int, bool]]:
    """Generations of the sealed journals, in order, and whether each was set aside."""
    matches = (_JOURNAL.fullmatch(name) for name in names)
    found = sorted((int(match[1]), match[2] is None) for match in matches if match is not None)
    return [(generation, not good) for generation, good in found]


def segments(names: Iterable[str]) -> list[int]:
    """Numbers of the segments, in order."""
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match is not None)
