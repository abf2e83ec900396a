"""A run of `make chaos` in a process of its own, for what reads its folder afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from children import child_environment

CANNOT_RUN_HERE = 2


def chaos_run(folder: Path, *options: str, within_s: float) -> subprocess.CompletedProcess[str]:
    """One minute of faults; `folder` has what it wrote. Skips the test where there can be none."""
    words = [sys.executable, "-m", "chaos", "--minutes=1", "--untimed", f"--folder={folder}"]
    done = subprocess.run(
        [*words, *options],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(done.stdout)
    return done
