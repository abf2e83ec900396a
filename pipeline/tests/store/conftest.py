"""A data directory with embedded and stored bodies, segments and compacted files, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from node.tests.storage.offline.directory import make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make(tmp_path_factory.mktemp("stores") / "data")


@pytest.fixture
def root(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A directory after a clean stop."""
    return Path(shutil.copytree(made[0], tmp_path / "data"))
