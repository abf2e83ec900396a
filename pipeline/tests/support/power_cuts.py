"""What a power cut would leave of the files that this process writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class Synced:
    """What a power cut would leave: of each file the bytes, of each folder the names, that it had
    when it was last synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fsync = os.fsync
        self._sizes: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = set(os.listdir(descriptor))
        else:
            self._sizes[found.st_ino] = found.st_size

    def names_of(self, folder: Path) -> set[str] | None:
        """None: it was never synced."""
        return self._names.get(os.stat(folder).st_ino)

    def lacks(self, file: Path, top: Path) -> list[Path]:
        """The file, or folders from `top` down to it, that would not be there."""
        found = file.stat()
        missing = [file] if self._sizes.get(found.st_ino) != found.st_size else []
        for path in (file, *file.parents):
            if path == top:
                return missing
            if path.name not in self._names.get(path.parent.stat().st_ino, ()):
                missing.append(path)
        raise AssertionError(f"{file} isn't below {top}")
