"""The files in a queue's folder: how they are named, and which positions a segment has.

    journal.jif   the current journal
    G.jif         a sealed journal of generation G
    N.idx         segment N: index entries of positions N * 16384 to N * 16384 + 16383
    *.new         a file that is being made; a start removes it
    *.bad         a file that a start could not read, and has put aside

Numbers are decimal, without leading zeros. A file with any other name is not the store's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

SEGMENT_POSITIONS: Final = 16_384

CURRENT_JOURNAL: Final = "journal.jif"
JOURNAL_SUFFIX: Final = ".jif"
SEGMENT_SUFFIX: Final = ".idx"
NEW_SUFFIX: Final = ".new"
BAD_SUFFIX: Final = ".bad"

_NUMBER: Final = r"(0|[1-9][0-9]{0,14})"
_JOURNAL: Final = re.compile(_NUMBER + r"\.jif(\.bad)?")
_SEGMENT: Final = re.compile(_NUMBER + r"\.idx")


def sealed_name(generation: int) -> str:
    return f"{generation}{JOURNAL_SUFFIX}"


def segment_name(number: int) -> str:
    return f"{number}{SEGMENT_SUFFIX}"


def sealed_journals(names: Iterable[str]) -> list[tuple[int, bool]]:
    """Generations of the sealed journals, in order, and whether each was put aside."""
    matches = (_JOURNAL.fullmatch(name) for name in names)
    found = sorted((int(match[1]), match[2] is None) for match in matches if match is not None)
    return [(generation, not good) for generation, good in found]


def segments(names: Iterable[str]) -> list[int]:
    """Numbers of the segments, in order."""
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match is not None)
