"""Where a query may be killed, times when messages leave the queue: no row is lost or twice.

The driver's Python, its JVM and their workers die by one SIGKILL; then the query is started again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live_node import LiveNode
from sparks import evidence

QUERY = Path(__file__).with_name("crashing_query.py")
COUNT = 100
RUN_S = 300
POINTS = ("before-sink", "after-sink", "at-the-end")
CASES = [(point, mode) for mode in ("committed", "never") for point in POINTS]


def run(live: LiveNode, queue: str, folder: Path, ack_mode: str, point: str) -> int:
    # A process group of its own, so that it can kill it as a whole.
    process = subprocess.Popen(
        [sys.executable, QUERY, live.address, queue, folder, ack_mode, point],
        start_new_session=True,
    )
    try:
        return process.wait(RUN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@evidence
@pytest.mark.slow
@pytest.mark.parametrize(("point", "ack_mode"), CASES)
def test_a_killed_query_loses_and_repeats_nothing(
    live: LiveNode, tmp_path: Path, point: str, ack_mode: str
) -> None:
    queue = f"crash {point} {ack_mode}"
    live.fill(queue, [b"%d" % number for number in range(COUNT)])
    assert run(live, queue, tmp_path, ack_mode, point) == -signal.SIGKILL
    assert run(live, queue, tmp_path, ack_mode, "never") == 0
    files = sorted((tmp_path / "rows").glob("*.json"))
    rows = sorted(tuple(row) for file in files for row in json.loads(file.read_text()))
    assert rows == [(number, str(number)) for number in range(COUNT)]
    assert live.stat(queue).messages == (0 if ack_mode == "committed" else COUNT)
