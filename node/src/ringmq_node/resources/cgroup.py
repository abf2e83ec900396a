"""How much memory this process may use and does use, read from Linux's files.

It may use the least of three: the machine's memory, the limit of the process's control
group, and the limits of all groups above that. Control groups exist in version 2
(`memory.max`) and 1 (`memory.limit_in_bytes`; there "no limit" is a number far above any
machine's memory). If a container shows only its own part of the tree, the mount's root is
the top of that part, and the path in /proc/self/cgroup begins above it or outside. A group
that can't be found or read limits nothing: then the machine's memory counts.

`root` is the folder with `proc` and `sys`; tests give a tree of their own.
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

    # The folder that it is mounted on, `root` included.
    mount: Path
    # The part of the tree that is mounted there, from the top of the whole tree.
    mounted: str
    # The name of the file with a group's limit.
    limit_file: str
    # The process's group as in /proc/self/cgroup, from the top of the whole tree.
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
    """The most memory that this process may use. Raises `OSError` if not even the machine's
    memory is known."""
    machine = _machine_bytes(root)
    limits = [
        _limit(folder / each.limit_file) for each in _found(root) for folder in each.folders()
    ]
    return min([machine, *(limit for limit in limits if limit is not None)])


def resident_bytes(root: Path = ROOT) -> int:
    """The resident size of this process. Raises `OSError`."""
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
    """None: no limit, or a file that can't be read."""
    try:
        limit = int(file.read_text())
    except (OSError, ValueError):
        return None
    return limit if limit > 0 else None


def _found(root: Path) -> list[Hierarchy]:
    """The mounted hierarchies that may limit memory. Some machines mount both versions."""
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
    """The process's groups by file system type, from lines `number:controllers:path`. Version
    2 has number 0 and names no controller."""
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
    """The mounted part, the folder and the type of a control group's mount, or None for any
    other line of mountinfo. See proc(5):
    `36 35 98:0 /mounted /folder options [optional fields] - type source super-options`."""
    front, _, back = line.partition(" - ")
    fields, kind = front.split(" "), back.split(" ")
    if len(fields) < 6 or len(kind) < 3 or kind[0] not in LIMIT_FILES:
        return None
    if kind[0] == "cgroup" and "memory" not in kind[2].split(","):
        return None
    return _unescaped(fields[3]), _unescaped(fields[4]), kind[0]


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and the like as a backslash and three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
