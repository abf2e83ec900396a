"""What profiles say: time by package.

A package's time is that of its own functions. A function written in C has no package: its time is
its callers', by what each of them has called; without one in the profile it is `OTHER`'s. uvloop is
C, too: what the loop itself takes is in no package, nor in the profile.
"""

from __future__ import annotations

import pstats
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

OTHER, DISK = "other libraries", "storage, disk calls"
# The first whose part of a path is in a function's file.
PACKAGES = (
    ("ringmq_gm/core/", "gm core"),
    ("ringmq_gm/links/", "links"),
    ("ringmq_gm/", "gm shell"),
    ("ringmq_wire/", "wire"),
    ("ringmq_node/storage/disk/", DISK),
    ("ringmq_node/storage/", "storage"),
    ("ringmq_node/queue/", "queue"),
    ("ringmq_node/replica/", "replica"),
    ("ringmq_node/broker/", "broker"),
    ("ringmq_node/doors/", "doors"),
    ("ringmq_node/", "node, the rest"),
    ("ringmq_base/", "base"),
    # With `src`: the checkout itself may be called ringmq.
    ("client/src/ringmq/", "client and messages"),
    ("asyncio/", "asyncio"),
)
# (file, line, name): how pstats calls a function. File "~" is C.
Function = tuple[str, int, str]
# (primitive calls, calls, own seconds, seconds with callees, the same for each caller).
Row = tuple[int, int, float, float, dict[Function, tuple[int, int, float, float]]]


def package_of(file: str) -> str:
    return next((name for part, name in PACKAGES if f"/{part}" in file), OTHER)


def seconds_by_package(rows: Mapping[Function, Row]) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, own_s, _, callers) in rows.items():
        if file != "~":
            found[package_of(file)] += own_s
            continue
        for caller, (_, _, called_s, _) in callers.items():
            found[package_of(caller[0])] += called_s
            own_s -= called_s
        found[OTHER] += max(own_s, 0.0)
    return found


def read(paths: Iterable[Path]) -> dict[str, float]:
    """Of several processes together."""
    found: defaultdict[str, float] = defaultdict(float)
    for path in paths:
        # Typeshed leaves the figures out, which the library's own page names.
        loaded: Any = pstats.Stats(str(path))
        for package, seconds in seconds_by_package(loaded.stats).items():
            found[package] += seconds
    return found
