"""A measured process: started, listened to, looked at from outside, ended."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from bench import procs
from bench.measure import BenchError
from bench.storage.events import Event, EventReader
from bench.storage.observations import Observations, Sample

SAMPLE_INTERVAL_S = 0.25
# A process that tells no event for so long hangs. Recovery tells none while it reads.
STALL_S = 900.0
_TOLD_INTERVAL_S = 5.0


class Watched:
    """Runs `command` from `start` to the end of the `with`, which kills it if it still runs."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self._log = log
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.started_at_s = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and waits for the end. Harmless if it has ended."""
        if self.process.poll() is None:
            procs.kill_group(self.process)
        self._reader.join(timeout=10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def follow(
        self,
        observed: Observations,
        *,
        roots: Sequence[int],
        directory: Path,
        until: str,
        deadline_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Adds events and samples to `observed` until the event `until`.

        Samples are of the processes `roots` and all below them, and of `directory`.
        Raises `BenchError` if the process ends before, hangs, or isn't done in `deadline_s`.
        """
        reader = EventReader()
        deadline = time.monotonic() + deadline_s
        stall = time.monotonic() + STALL_S
        told = time.monotonic()
        phase = ""
        while True:
            try:
                line = self._lines.get(timeout=SAMPLE_INTERVAL_S)
            except queue.Empty:
                line = ""
            now = time.monotonic()
            if line is None:
                raise BenchError(self._ended_early())
            event = reader.read(line)
            last = observed.samples[-1].at_s if observed.samples else 0.0
            # Samples at the edges of a phase make the CPU time of the phase exact.
            is_edge = event is not None and event.event != "progress"
            if is_edge or now - last >= SAMPLE_INTERVAL_S:
                self._sample(observed, roots, directory, event.phase if event else phase)
            if event is not None:
                observed.events.append(event)
                phase = event.phase
                stall = now + STALL_S
                if now - told >= _TOLD_INTERVAL_S and event.event == "progress":
                    told = now
                    say(_told(event, observed.samples[-1]))
                if event.event == until:
                    return
            if now > min(deadline, stall):
                raise BenchError(f"{phase or 'the start'} isn't done in time: {self._last_words()}")

    def wait(self, timeout_s: float = 30) -> None:
        """Awaits an orderly end. Raises `BenchError` if it isn't one."""
        if self.process.wait(timeout_s):
            raise BenchError(self._ended_early())

    def _sample(
        self, observed: Observations, roots: Sequence[int], directory: Path, phase: str
    ) -> None:
        at_s = time.monotonic()
        use = procs.tree_use(roots)
        observed.rss_peak_bytes = max(observed.rss_peak_bytes, use.rss_peak_bytes)
        disk = procs.disk_use_bytes(directory)
        observed.samples.append(Sample(at_s, phase, use.cpu_s, use.rss_bytes, disk))

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode(errors="replace"))
        self._lines.put(None)

    def _ended_early(self) -> str:
        self.process.wait(10)
        return f"a measured process ended with {self.process.returncode}: {self._last_words()}"

    def _last_words(self, lines_max: int = 15) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-lines_max:]) or "it wrote nothing to stderr"


def _told(event: Event, sample: Sample) -> str:
    share = event.done / event.total if event.total else 0.0
    return (
        f"  {event.phase}: {event.done} of {event.total} ({share:.0%}), "
        f"resident {sample.rss_bytes / 2**20:.0f} MiB, disk {sample.disk_bytes / 1e9:.2f} GB"
    )
