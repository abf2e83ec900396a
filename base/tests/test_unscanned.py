"""The garbage collector looks at what tests make, and not at pytest's items: in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import play

SUITE = """
import gc
import pytest

def test_items_are_frozen_and_the_collector_is_on():
    assert gc.isenabled()
    assert not [each for each in gc.get_objects() if isinstance(each, pytest.Item)]
    mine = [[]]
    assert any(each is mine for each in gc.get_objects())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "outcome"), [((), "1 passed"), (("-p", "no:unscanned"), "1 failed")]
)
def test_collected_items_are_not_looked_at(
    tmp_path: Path, more: tuple[str, ...], outcome: str
) -> None:
    done = play(SUITE, tmp_path, *more)
    assert outcome in done.stdout, done.stdout + done.stderr
