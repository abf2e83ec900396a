"""How much memory this process may use and does use, as Linux says it.

May: the least of the machine's memory and the limits of the process's control group and
of all groups above it, in version 2 (`memory.max`) or 1 (`memory.limit_in_bytes`; "no
limit" is a number there, far above any machine's memory). Where a container shows only
its own part of the tree, the mount's root is that part's top, and the path in
/proc/self/cgroup begins above it or outside. A group that can't be found or read limits
nothing: what then counts is the machine's memory.

`root` is where `proc` and `sys` are found; tests give a tree of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
# Version by the type of the file system: the file with a group's limit.
LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A tree of groups, and this process's place in it."""

    # Where it is mounted, below `root`; what of it is mounted there; the file with the limit.
    mount: Path
    mounted: str
    limit_file: str
    # As in /proc/self/cgroup, from the top of the whole tree.
    group: str

    def folders(self) -> Iterator[Path]:
        """From the process's group up to the highest that is visible."""
        below = os.path.relpath(self.group, self.mounted)
        folder = self.mount
        if below != "." and not f"{below}/".startswith("../"):
            folder = self.mount / below
        while folder != self.mount:
            yield folder
            folder = folder.parent
        yield self.mount


def memory_bytes(root: Path = ROOT) -> int:
    """What this process may use, at most. Raises `OSError` if even the machine's isn't known."""
    machine = _machine_bytes(root)
    limits = [
        _limit(folder / each.limit_file) for each in _found(root) for folder in each.folders()
    ]
    return min([machine, *(limit for limit in limits if limit is not None)])


def resident_bytes(root: Path = ROOT) -> int:
    """What this process has in memory now. Raises `OSError`."""
    try:
        pages = int((root / "proc/self/statm").read_text().split()[1])
    except (ValueError, IndexError) as error:
        raise OSError(f"/proc/self/statm can't be read: {error}") from error
    return pages * os.sysconf("SC_PAGE_SIZE")


def _machine_bytes(root: Path) -> int:
    try:
        found = re.search(r"^MemTotal: *(\d+) kB$", (root / "proc/meminfo").read_text(), re.M)
    except (OSError, UnicodeDecodeError):
        found = None
    if found is not None and int(found[1]) > 0:
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except ValueError as error:
        raise OSError("the machine doesn't say how much memory it has") from error


def _limit(file: Path) -> int | None:
    """None: no limit, or none that can be read."""
    try:
        limit = int(file.read_text())
    except (OSError, ValueError):
        return None
    return limit if limit > 0 else None


def _found(root: Path) -> list[Hierarchy]:
    """The mounted hierarchies that may limit memory; on some machines both versions are."""
    try:
        groups = _groups((root / "proc/self/cgroup").read_text())
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [
        Hierarchy(root / mount.lstrip("/"), mounted, LIMIT_FILES[kind], groups[kind])
        for mounted, mount, kind in filter(None, map(_cgroup_mount, mounts))
        if kind in groups
    ]


def _groups(text: str) -> dict[str, str]:
    """By file system type, from lines `number:controllers:path`; version 2 names no controller."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            found["cgroup2"] = path
        elif "memory" in controllers.split(","):
            found["cgroup"] = path
    return found


def _cgroup_mount(line: str) -> tuple[str, str, str] | None:
    """What is mounted, where, and its type, from a line of mountinfo; see proc(5):
    `36 35 98:0 /mounted /where options [optional fields] - type source super-options`."""
    front, _, back = line.partition(" - ")
    fields, kind = front.split(" "), back.split(" ")
    if len(fields) < 6 or len(kind) < 3 or kind[0] not in LIMIT_FILES:
        return None
    if kind[0] == "cgroup" and "memory" not in kind[2].split(","):
        return None
    return _unescaped(fields[3]), _unescaped(fields[4]), kind[0]


def _unescaped(text: str) -> str:
    """Blanks and the like are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
