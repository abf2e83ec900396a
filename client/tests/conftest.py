from __future__ import annotations

import functools

import loops
import pytest
from on_loops import Run, run_on


@pytest.fixture(params=[*loops.LOOPS])
def run(request: pytest.FixtureRequest) -> Run:
    """Applications run the client on uvloop or on asyncio's own loop; so does each test."""
    return functools.partial(run_on, loops.LOOPS[request.param])
