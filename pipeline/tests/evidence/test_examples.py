"""The examples of the pipeline run as a newcomer runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from live_node import LiveNode
from sparks import evidence

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline"
RUN_S = 300.0


@evidence
@pytest.mark.slow
def test_a_queue_becomes_a_table_and_a_plot(live: LiveNode, tmp_path: Path) -> None:
    words = [str(EXAMPLES / "queue_to_table.py"), str(tmp_path / "lake"), live.address]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr
    assert "5000 orders are in the table, 2 are quarantined" in done.stdout
    assert "0 messages are left in the queue" in done.stdout
    assert (
        sum(int(line.split()[1]) for line in done.stdout.splitlines() if ": " in line[:3]) == 5000
    )
    assert (tmp_path / "lake" / "orders.png").stat().st_size
    # It leaves nothing behind.
    assert "example.orders" not in {info.queue for info in live.client.queues()}
