"""Programs of the tests that run in a process of their own."""

from __future__ import annotations

import os
import sys


def child_environment() -> dict[str, str]:
    """The environment in which a child finds every module that this process finds.

    pytest puts the folders of the shared helpers on its own path only.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
