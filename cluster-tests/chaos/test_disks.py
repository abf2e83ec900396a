"""Disks that several faults freeze at once, as a storm has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos.disks import Disks, NoDisksError


def test_a_disk_is_frozen_until_it_was_thawed_as_often(tmp_path: Path) -> None:
    """The second freeze failed, and that ended the run."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount disks")
    try:
        with Disks(tmp_path, ("a",)) as disks:
            if not disks.can_freeze:
                pytest.skip("no disk can be frozen here")
            disks.freeze("a")
            disks.freeze("a")
            disks.thaw("a")
            with pytest.raises(OSError, match="busy"):
                freeze_once_more(tmp_path)
            disks.thaw("a")
            disks.freeze("a")
            disks.thaw("a")
            (disks.data("a").parent / "file").write_bytes(b"it takes writes")
        disks.throw_away()
    except NoDisksError as error:
        pytest.skip(str(error))


def freeze_once_more(folder: Path) -> None:
    """As somebody who doesn't know that it is frozen."""
    others = Disks(folder, ("a",))
    others.freeze("a")
    others.thaw("a")
