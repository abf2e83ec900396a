"""Programs of others that judge the transport.

CI installs those of Debian's packages, builds those of Debian's sources, and sets
`RINGMQ_JUDGES=required`: a test without its judge then fails, instead of being skipped.
"""

from __future__ import annotations

import os
import shutil

import pytest


def judged_by(program: str, *, package: str) -> None:
    """Skips the test, or fails it in CI, unless the program of Debian's package is on the PATH."""
    if shutil.which(program) is None:
        without(program, package)


def judged_by_built(program: str, *, built_by: str) -> None:
    """As `judged_by`, for a program that a command of CI builds."""
    if shutil.which(program) is None:
        _miss(f"{program} isn't on the PATH (`{built_by}` builds it)")


def without(what: str, *packages: str) -> None:
    """Ends a test that lacks a judge which Debian's packages have."""
    _miss(f"{what} isn't installed (Debian: apt-get install {' '.join(packages)})")


def _miss(reason: str) -> None:
    if os.environ.get("RINGMQ_JUDGES") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
