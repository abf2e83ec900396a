"""The choice of the files that are worth compacting. Numbers only.

Moving a file costs its live bytes, read and written, and gives back its garbage. So the
files with the largest part of garbage go first, wherever they stand, and no more of them
than fill one new file. A file is worth moving

* when more than `garbage_fraction` of all bytes is garbage, and there are `files_min` files: if at
  least half that fraction of the file is garbage;
* at any time: if the file is nearly all garbage (half way from `garbage_fraction` to all), and the
  choice gains a quarter of a file's size. Else one such file would lie beside many full ones for
  ever.

Each choice gains at least its cost times a constant. So the bytes that compaction writes are
bounded by a multiple of the bytes that were put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileNumbers:
    """A settled file: nothing is written to it any more."""

    number: int
    disk_bytes: int
    live_bytes: int

    @property
    def garbage_bytes(self) -> int:
        return self.disk_bytes - self.live_bytes


def choose(
    files: Sequence[FileNumbers], *, file_bytes_max: int, garbage_fraction: float, files_min: int
) -> list[int]:
    """The numbers of the files whose live records should be moved, in this order; may be none."""
    total = sum(file.disk_bytes for file in files)
    garbage = sum(file.garbage_bytes for file in files)
    crowded = len(files) >= files_min and garbage > garbage_fraction * total
    least = garbage_fraction / 2 if crowded else (1 + garbage_fraction) / 2
    worth = [
        file
        for file in files
        if file.live_bytes > 0 and file.garbage_bytes > least * file.disk_bytes
    ]
    # With the number in the key the choice depends on nothing else.
    worth.sort(key=lambda file: (file.live_bytes / file.disk_bytes, file.number))
    chosen: list[FileNumbers] = []
    moved = 0
    for file in worth:
        if chosen and moved + file.live_bytes > file_bytes_max:
            break
        chosen.append(file)
        moved += file.live_bytes
    if not crowded and sum(file.garbage_bytes for file in chosen) < file_bytes_max // 4:
        return []
    return [file.number for file in chosen]
