"""Removing files that are of no more use: the loop's side of a `RemoveJob`. See `compaction`."""

from __future__ import annotations

import threading

from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.files import (
    DataFile,
    FileState,
    MovedFile,
    StoreFile,
    data_name,
    map_name,
)

# Names removed in one step.
REMOVALS_MAX = 32
_REMOVABLE = (FileState.SETTLED, FileState.STUCK)


class Removal:
    """Chooses the next names to be removed, and forgets their files."""

    def __init__(self, catalogue: Catalogue, lock: threading.Lock) -> None:
        self._catalogue = catalogue
        self._lock = lock
        # Victims whose records have been moved. Their `N.rdq` are still there.
        self._moved_away: dict[int, None] = {}

    def add_moved_away(self, number: int) -> None:
        self._moved_away[number] = None

    def plan(self) -> list[str]:
        """At most `REMOVALS_MAX` names."""
        catalogue = self._catalogue
        names: list[str] = []
        for number in [*self._moved_away]:
            if number < catalogue.highest_durable and len(names) < REMOVALS_MAX:
                del self._moved_away[number]
                names.append(data_name(number))
        for number in [*catalogue.idle]:
            if len(names) >= REMOVALS_MAX:
                break
            names += self._forget_if_idle(number)
        return names

    def _forget_if_idle(self, number: int) -> list[str]:
        """Forgets a file without references; returns its names. None if it has to stay for now."""
        catalogue = self._catalogue
        file = catalogue.files.get(number)
        if file is None or not _is_unused(file):
            # `idle` is a list of candidates: this one has been forgotten, or is referred to again.
            del catalogue.idle[number]
            return []
        if isinstance(file, DataFile) and file.state not in _REMOVABLE:
            # A job is writing to it or copying from it, or will be.
            return []
        if number >= catalogue.highest_durable or number in self._moved_away:
            # The highest name tells a restart which numbers have been used. And of a moved file the
            # map goes last: as long as `N.rdq` is there, a restart finds both and knows why.
            return []
        with self._lock:
            del catalogue.files[number]
        del catalogue.idle[number]
        match file:
            case DataFile():
                return [data_name(number)]
            case MovedFile():
                return [map_name(number)]
        # A lost file may have left an empty data file, or a map that can't be read.
        return [data_name(number), map_name(number)]


def _is_unused(file: StoreFile) -> bool:
    if isinstance(file, MovedFile):
        return not file.live and not file.unknown
    return not file.live_records
