"""Three processes (`member.py`) multicast among themselves; the master is killed; the others go on.

    python gm/examples/three_processes.py

Prints what happens, then whether all have heard the same in the same order; the
exit code is 0 if they have. What the killed one heard behind the last confirmed line doesn't count:
a master hears its own lines first, and those that it sent to nobody die with it.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MEMBER = Path(__file__).with_name("member.py")
# Lines before the kill, and after it.
LINES = 40
DEADLINE_S = 30.0


def main() -> int:
    heard: dict[str, list[str]] = {"anna": [], "ben": [], "carl": []}
    with tempfile.TemporaryDirectory() as folder:
        processes = {
            name: subprocess.Popen(
                [sys.executable, MEMBER, name, f"sqlite://{folder}/registry.db"],
                stdout=subprocess.PIPE,
            )
            for name in heard
        }
        try:
            killed = follow(processes, heard)
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()
    logs = list(heard.values())
    same = all(a[: len(b)] == b[: len(a)] for a in logs for b in logs)
    counts = ", ".join(f"{name} {len(log)}" for name, log in heard.items())
    print(f"heard by {counts}; {killed} was killed; the same order everywhere: {same}")
    return 0 if same else 1


def follow(processes: dict[str, subprocess.Popen[bytes]], heard: dict[str, list[str]]) -> str:
    """Kills the first master after `LINES` confirmed lines; returns after as many more."""
    killed = ""
    ends_at = safe = 0
    for name, line in spoken(processes):
        match line.split(" ", 2):
            case ["delivered", number, text]:
                heard[name].append(text)
                assert int(number) == len(heard[name])
            case ["confirmed", number] if name == killed:
                safe = int(number)
            case ["confirmed", number] if not killed and int(number) >= LINES:
                killed, safe, ends_at = name, int(number), int(number) + LINES
                processes[name].kill()
                print(f"{name} was killed after {number} confirmed lines")
            case ["confirmed", number] if killed and int(number) >= ends_at:
                del heard[killed][safe:]
                return killed
            case [role, epoch] if role != "confirmed":
                print(f"{name} is {role} in epoch {epoch}")
    raise ConnectionError("all members have ended")


def spoken(processes: dict[str, subprocess.Popen[bytes]]) -> Iterator[tuple[str, str]]:
    """The lines that the processes print, as they come."""
    with selectors.DefaultSelector() as selector:
        for name, process in processes.items():
            assert process.stdout is not None
            selector.register(process.stdout.fileno(), selectors.EVENT_READ, (name, process.stdout))
        rest = dict.fromkeys(processes, b"")
        deadline = time.monotonic() + DEADLINE_S
        while selector.get_map():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it isn't over after {DEADLINE_S} s")
            for key, _ in selector.select(1.0):
                stream: IO[bytes]
                name, stream = key.data
                data = stream.read1(65536)  # type: ignore[attr-defined]
                if not data:
                    selector.unregister(key.fd)
                *lines, rest[name] = (rest[name] + data).split(b"\n")
                yield from ((name, line.decode()) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
