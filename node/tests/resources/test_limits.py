"""How an operator writes limits."""

from __future__ import annotations

import pytest

from ringmq_node.resources.limits import (
    Limit,
    MemoryFraction,
    Size,
    parse_disk_free_limit,
    parse_memory_watermark,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("0.4", MemoryFraction(0.4)),
        ("1", MemoryFraction(1.0)),
        ("1.0", MemoryFraction(1.0)),
        ("0.001", MemoryFraction(0.001)),
        ("256MiB", Size(256 * MIB)),
        ("256mib", Size(256 * MIB)),
        (" 256 MiB ", Size(256 * MIB)),
        ("1.5GiB", Size(1536 * MIB)),
        ("2GB", Size(2_000_000_000)),
        ("1048576", Size(MIB)),
        ("1048576B", Size(MIB)),
        ("1024KiB", Size(MIB)),
        ("2000kB", Size(2_000_000)),
        ("1TiB", Size(MIB * MIB)),
        ("1TB", Size(10**12)),
        ("1048576.0", Size(MIB)),
    ],
)
def test_memory_watermarks(text: str, limit: Limit) -> None:
    assert parse_memory_watermark(text) == limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("50MB", Size(50_000_000)),
        ("50000000", Size(50_000_000)),
        ("0", Size(0)),
        ("0.5", Size(0)),
        ("1GiB", Size(1024 * MIB)),
        ("1.0mem", MemoryFraction(1.0)),
        ("0.5 MEM", MemoryFraction(0.5)),
        ("1000mem", MemoryFraction(1000.0)),
    ],
)
def test_disk_free_limits(text: str, limit: Limit) -> None:
    assert parse_disk_free_limit(text) == limit


NOT_QUANTITIES = ["", "-1", "+1", "nan", "inf", "1e9", "5XB", "MiB", ".5", "1,5GB", "0x10", "true"]


@pytest.mark.parametrize(
    "text",
    [
        *NOT_QUANTITIES,
        "0",
        "0.0",
        "40",
        "1.5",
        "1048575",
        "1000kB",
        "0.5mem",
        "9" * 21,
        "2097152TiB",
    ],
)
def test_refused_memory_watermarks(text: str) -> None:
    with pytest.raises(ValueError, match=r"fraction|size|memory|bytes"):
        parse_memory_watermark(text)


@pytest.mark.parametrize("text", [*NOT_QUANTITIES, "50MBmem", "1001mem", "2097152TiB"])
def test_refused_disk_free_limits(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|memory|bytes"):
        parse_disk_free_limit(text)


def test_limits_of_a_memory() -> None:
    assert MemoryFraction(0.4).of(1000) == 400
    assert Size(7).of(1000) == 7
