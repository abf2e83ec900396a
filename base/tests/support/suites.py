"""A suite of a test's own, played by a pytest of its own with the project's settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from children import child_environment

ROOT = Path(__file__).parents[3]


def play(suite: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the source of a test module, which is written to `folder`."""
    module = folder / "test_suite.py"
    module.write_text(suite)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *words]
    # It is no worker of the run that the test is in.
    environment = {key: value for key, value in child_environment().items() if "XDIST" not in key}
    return subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), str(module)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
