"""A store to be compacted."""

from __future__ import annotations

import pytest
from node.tests.storage.messages.checked_store import CheckedStore
from node.tests.storage.simulated_disk import SimulatedDisk


@pytest.fixture
def stored() -> CheckedStore:
    """Six files of four records each, and a seventh that is written to."""
    return CheckedStore(SimulatedDisk(), 25)
