"""The kernel's page cache, emptied of some files: a recovery is measured from a cold one."""

from __future__ import annotations

import os
from pathlib import Path


def evict(directory: Path) -> None:
    """Takes all files below `directory` out of the page cache, as a power cut does.

    Dirty pages are written first. The kernel evicts only clean ones, and a recovery that lost
    unwritten data isn't the one to be measured.
    """
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path.is_symlink() or not path.is_file():
                continue
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
