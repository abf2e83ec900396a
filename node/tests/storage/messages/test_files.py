"""Names of files."""

from __future__ import annotations

import pytest

from ringmq_node.storage.messages.files import parse_name


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("12.rdq", (12, ".rdq")),
        ("7.map", (7, ".map")),
        ("7.map.new", None),
        ("x.rdq", None),
        ("-1.rdq", None),
        ("4294967294.rdq", (4294967294, ".rdq")),
        ("4294967295.rdq", None),
        ("99999999999.rdq", None),
    ],
)
def test_names(name: str, parsed: tuple[int, str] | None) -> None:
    assert parse_name(name) == parsed
