"""Directories to be damaged: copies of two that are made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from node.tests.storage.offline.directory import (
    make,
)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def root(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A directory after a clean stop, to be damaged."""
    return Path(shutil.copytree(made[0], tmp_path / "data"))


@pytest.fixture
def killed(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A directory after the process was killed, to be damaged."""
    return Path(shutil.copytree(made[1], tmp_path / "data"))
