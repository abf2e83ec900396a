"""`python -m bench profile`: where the three nodes' Python time goes, as shares of packages.

Each row is published once without a profile, so that everything is warm, and once with one in each
node (see `hook/sitecustomize.py`). A profile makes small functions look larger than they are:
read the shares beside each other, and take rates and processor time from `make bench`. The time in
calls of the disk is mostly waiting, so it has a line of its own and no share.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import procs
from bench.comparison import BUILD
from bench.measure import BenchError, Point, machine_facts
from bench.peers.ringmq import RingPeer
from bench.profiling import shares
from bench.profiling.hook.sitecustomize import FOLDER_VARIABLE
from bench.report import WIDTH_PIPED
from bench.rivals import FULL_ROWS

HOOK = Path(__file__).with_name("hook")
ROWS = (
    Point(count=2000, size_bytes=1024, window=1),
    Point(count=10_000, size_bytes=1024, window=1, queues=100),
)
_COLUMN_WIDTH = 32
_WARM_UP_SHARE = 5
_WRITTEN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Of one row: how long the nodes' loops were in each package, and the processor time of the
    nodes' processes as the kernel counts it."""

    point: Point
    seconds: dict[str, float]
    nodes_cpu_s: float

    @property
    def busy_s(self) -> float:
        """All but the calls of the disk."""
        return sum(seconds for name, seconds in self.seconds.items() if name != shares.DISK)

    def share(self, package: str) -> float:
        return self.seconds.get(package, 0.0) / self.busy_s

    def us(self, seconds: float) -> str:
        """For each message, over all nodes."""
        return f"{seconds / self.point.count * 1e6:.0f}"

    def packages(self) -> list[str]:
        """That with most of the time first; not the calls of the disk."""
        found = sorted(self.seconds, key=lambda name: -self.seconds[name])
        return [name for name in found if name != shares.DISK]

    def to_json(self) -> dict[str, Any]:
        shown = {name: round(self.share(name), 4) for name in self.packages()}
        return {
            "point": asdict(self.point),
            "shares": shown,
            "busy_s": self.busy_s,
            "disk_calls_s": self.seconds.get(shares.DISK, 0.0),
            "nodes_cpu_s": self.nodes_cpu_s,
        }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench profile", description=__doc__)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="so many times the messages (default: 1)"
    )
    parser.add_argument("--full", action="store_true", help="every row of `make bench ARGS=--full`")
    parser.add_argument("--json", action="store_true", help="all figures on stdout, no table")
    parsed = parser.parse_args(arguments)
    if parsed.scale <= 0:
        parser.error("--scale is above 0")
    return parsed


def points_of(parsed: argparse.Namespace) -> list[Point]:
    """The rows, each with a message for each queue at least."""
    rows = FULL_ROWS if parsed.full else ROWS
    return [replace(row, count=max(int(row.count * parsed.scale), row.queues)) for row in rows]


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="profile-", dir=BUILD))
    profiles = folder / "profiles"
    profiles.mkdir()
    environment = {FOLDER_VARIABLE: str(profiles), "PYTHONPATH": _python_path()}
    peer = RingPeer(folder / "ringmq", environment=environment)
    try:
        try:
            peer.start()
            found = []
            for point in points_of(parsed):
                progress.print(f"{point.label()}, {point.count} messages")
                found.append(_profile(peer, point, profiles))
        finally:
            peer.stop()
        facts = machine_facts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if parsed.json:
        rows = [each.to_json() for each in found]
        print(json.dumps({"machine": facts, "rows": rows}, indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = max(WIDTH_PIPED, _COLUMN_WIDTH * (1 + len(found)))
        console.print(table(found))


def _python_path() -> str:
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(HOOK), *([given] if given else [])])


def _profile(peer: RingPeer, point: Point, folder: Path) -> Profile:
    pids = peer.broker_pids()
    queues = [f"profile.{point.queues}.{number}" for number in range(point.queues)]
    peer.prepare(queues)
    peer.publish(point.share(_WARM_UP_SHARE), queues)
    before = procs.tree_cpu_s(pids)
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    peer.publish(point, queues)
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    paths = [folder / f"{pid}.pstats" for pid in pids]
    if not procs.wait_until(lambda: all(map(Path.exists, paths)), timeout_s=_WRITTEN_TIMEOUT_S):
        raise BenchError(f"a node has written no profile in {_WRITTEN_TIMEOUT_S:g} s")
    nodes_cpu_s = procs.tree_cpu_s(pids) - before
    seconds = shares.read(paths)
    for path in paths:
        path.unlink()
    peer.remove(queues)
    return Profile(point, seconds, nodes_cpu_s)


def table(profiles: Sequence[Profile]) -> Table:
    """A row for each package, those with most of the first profile's time above."""
    title = "share of the loops' time, and us for each message, three nodes together"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    shown.add_column("", no_wrap=True)
    for profile in profiles:
        shown.add_column(profile.point.label(), justify="right", no_wrap=True)
    for name in dict.fromkeys(name for each in profiles for name in each.packages()):
        cells = [
            f"{each.share(name):4.0%} {each.us(each.seconds.get(name, 0.0)):>6}"
            for each in profiles
        ]
        shown.add_row(name, *cells)
    shown.add_section()
    shown.add_row("all of the above", *(each.us(each.busy_s) for each in profiles))
    waits = [each.us(each.seconds.get(shares.DISK, 0.0)) for each in profiles]
    shown.add_row(f"{shares.DISK}, with waits", *waits)
    kernel = [each.us(each.nodes_cpu_s) for each in profiles]
    shown.add_row("processor time of the nodes", *kernel)
    return shown
