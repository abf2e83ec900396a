"""Disks of the nodes that can be filled, frozen and damaged. Root only.

Each is an ext4 file system in a file of its own, mounted by a loop device. A slow disk is one that
is *frozen* again and again (FIFREEZE, as fsfreeze does): every write and sync waits until it is
thawed, and reads of what is in memory go on. That needs no module of the kernel and no hook in
the node. Device-mapper's delay target would be as good, but many machines have none.

Where loop devices can't be had, a disk is a tmpfs: it can be filled, but not frozen.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

SIZE_MIB = 512
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
FILLER_STEP_BYTES = 4096


class NoDisksError(Exception):
    """Nothing can be mounted here; the message says why."""


class Disks:
    """`with Disks(folder, ("a", "b")) as disks`. Raises `NoDisksError`."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self._folder = folder
        self._nodes = tuple(nodes)
        self._mounted: list[Path] = []
        # The open directory of a frozen disk, and how many faults keep it frozen.
        self._frozen: dict[str, tuple[int, int]] = {}
        # They are threads.
        self._lock = threading.Lock()
        self.can_freeze = True

    def __enter__(self) -> Disks:
        try:
            for node in self._nodes:
                self._mount(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in list(self._frozen):
            while node in self._frozen:
                self.thaw(node)
        for place in self._mounted:
            subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)
        self._mounted.clear()

    def throw_away(self) -> None:
        """Removes the files, which outlive `close`: after a failure somebody wants to look."""
        for node in self._nodes:
            self._image(node).unlink(missing_ok=True)
            self._place(node).rmdir()

    def mount_left(self, node: str) -> None:
        """The disk of a run that has ended, read only. Raises `NoDisksError`."""
        image, place = self._image(node), self._place(node)
        if trouble := _tried("mount", "-o", "loop,ro", str(image), str(place)):
            raise NoDisksError(f"{image} can't be mounted: {trouble}")
        self._mounted.append(place)

    def data(self, node: str) -> Path:
        """The node's data directory; the node makes it."""
        return self._place(node) / "data"

    # --- faults ---

    def freeze(self, node: str) -> None:
        """Blocks until all that was written is on the disk; then nobody can write to it, until it
        was thawed as often."""
        with self._lock:
            if node in self._frozen:
                file, count = self._frozen[node]
                self._frozen[node] = file, count + 1
                return
            file = os.open(self._place(node), os.O_RDONLY)
            try:
                fcntl.ioctl(file, FIFREEZE, 0)
            except BaseException:
                os.close(file)
                raise
            self._frozen[node] = file, 1

    def thaw(self, node: str) -> None:
        with self._lock:
            file, count = self._frozen.pop(node)
            if count > 1:
                self._frozen[node] = file, count - 1
                return
            try:
                fcntl.ioctl(file, FITHAW, 0)
            finally:
                os.close(file)

    def fill(self, node: str) -> None:
        """From now on there is no room, also not for root. Most of it is only allocated: to write
        it would be a slow disk as well."""
        with open(self._filler(node), "ab", buffering=0) as filler:
            room = os.fstatvfs(filler.fileno())
            step = room.f_bavail * room.f_frsize // 2
            while step >= FILLER_STEP_BYTES:
                try:
                    os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), step)
                except OSError:
                    step //= 2  # No room for so much; there may be for less.
            try:
                while True:
                    filler.write(bytes(FILLER_STEP_BYTES))
            except OSError:
                return

    def make_room(self, node: str) -> None:
        self._filler(node).unlink()

    def cut_journals(self, node: str, kept: float) -> None:
        """Only the first part of each current journal is left, `kept` of 1: a torn tail, which
        nobody can tell from what a power cut leaves."""
        for journal in self.data(node).glob("queues/*/journal.jif"):
            os.truncate(journal, int(kept * journal.stat().st_size))

    def flip(
        self, node: str, count: int, body: re.Pattern[bytes], may: Callable[[int], bool]
    ) -> int:
        """Changes one bit of the last byte of up to `count` bodies, each in every place where it
        is; returns of how many. `body` finds a body, its number as group 1; `may` is asked of it.
        """
        places: dict[int, list[tuple[Path, int]]] = {}
        for path in self.data(node).rglob("*.[jir][ifd][fxq]"):
            for found in body.finditer(path.read_bytes()):
                number = int(found[1])
                if may(number):
                    places.setdefault(number, []).append((path, found.end() - 1))
        # The newest are still in the queue, more often than not.
        newest = sorted(places)[-4 * count :]
        chosen = random.Random(len(newest)).sample(newest, min(count, len(newest)))
        for number in chosen:
            for path, at in places[number]:
                with open(path, "r+b") as file:
                    file.seek(at)
                    (byte,) = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte ^ 1]))
        return len(chosen)

    # --- inside ---

    def _place(self, node: str) -> Path:
        return self._folder / f"disk-{node}"

    def _image(self, node: str) -> Path:
        return self._folder / f"disk-{node}.img"

    def _filler(self, node: str) -> Path:
        return self._place(node) / "filler"

    def _mount(self, node: str) -> None:
        place, image = self._place(node), self._image(node)
        place.mkdir(parents=True, exist_ok=True)
        with open(image, "wb") as file:
            file.truncate(SIZE_MIB * 1024 * 1024)
        # -m 0: no room is kept back for root, which the nodes are here.
        made = _tried("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        trouble = made or _tried("mount", "-o", "loop", str(image), str(place))
        if trouble:
            self.can_freeze = False
            size = f"size={SIZE_MIB}m"
            if _tried("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)):
                raise NoDisksError(f"no disk for node {node}: {trouble}")
        self._mounted.append(place)


@contextmanager
def left_disks(folder: Path, nodes: Sequence[str]) -> Iterator[dict[str, Path]]:
    """The data directories of these nodes as a run has left them in `folder`, read only; without
    nodes that never had one. Raises `NoDisksError` where the run has left no disks."""
    disks = Disks(folder, nodes)
    try:
        for node in nodes:
            disks.mount_left(node)
        yield {node: disks.data(node) for node in nodes if disks.data(node).exists()}
    finally:
        disks.close()


def _tried(*command: str) -> str:
    """Why it didn't work; empty if it did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{command[0]} failed"
