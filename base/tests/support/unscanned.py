"""Keeps Python's garbage collector away from pytest's own objects: half a million of them.

While pytest imports the test modules and makes an item of each case, nearly nothing dies. The
collector looks at all that is there again and again all the same, which took half of the processor
time of a collection, in each worker. So it is off meanwhile. What has been collected lives until
the end, and is frozen: no collection of a test looks at it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        # The garbage of a collection would be frozen with the rest; it is little.
        gc.freeze()
        if was_on:
            gc.enable()
