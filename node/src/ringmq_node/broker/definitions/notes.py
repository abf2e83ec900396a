"""The list of what definitions say and a cluster can't have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class Notes:
    """What can't be mapped: where it stands, and why."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, why: str) -> None:
        self.lines.append(f"{where}: {why}")

    def unread(
        self, where: str, entry: Mapping[str, Any], read: Collection[str], prefix: str = ""
    ) -> None:
        """Lists the keys of an entry that its reader doesn't know. The values are left out: they
        may be long, or passwords. A key without a value says nothing, and isn't listed."""
        for key, value in entry.items():
            if key not in read and not is_empty(value):
                self.add(where, f"{prefix}{key} has no meaning here")


def is_empty(value: object) -> bool:
    """Whether a key with this value says as much as no key. False and 0 say something."""
    return value is None or value in ("", [], {})
