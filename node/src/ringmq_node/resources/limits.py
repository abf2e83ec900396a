"""The two limits of a node as an operator writes them.

    memory_watermark   0.4      this fraction of the memory that the node may use
                       256MiB   this many bytes
    disk_free_limit    50MB     this many bytes
                       0.5mem   half as much as the memory that the node may use

Units: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024; B, or no unit, is
bytes. Pure: `config` checks the settings with it, the node applies them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
MEMORY_UNIT = "mem"
# A smaller size is a slip of the pen: 40 for 0.4, or a forgotten unit.
WATERMARK_BYTES_MIN = 1 << 20
BYTES_MAX = 1 << 60
MEMORIES_MAX = 1000.0

_QUANTITY = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) ?([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes."""

    size_bytes: int

    def of(self, memory_bytes: int) -> int:
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class MemoryFraction:
    """A multiple of the memory that the node may use."""

    fraction: float

    def of(self, memory_bytes: int) -> int:
        """In bytes."""
        return int(self.fraction * memory_bytes)


Limit = Size | MemoryFraction


def parse_memory_watermark(text: str) -> Limit:
    """Raises `ValueError`, whose message names the forms that are allowed."""
    number, unit = _quantity(text, "a fraction like 0.4 or a size like 256MiB")
    if not unit and number <= 1:
        if number == 0:
            raise ValueError(f"{text!r} would allow no memory at all")
        return MemoryFraction(number)
    size = _size(text, number, unit)
    if size.size_bytes < WATERMARK_BYTES_MIN:
        raise ValueError(
            f"{text!r} is neither a fraction up to 1 nor a size of {WATERMARK_BYTES_MIN} bytes"
            " or more"
        )
    return size


def parse_disk_free_limit(text: str) -> Limit:
    """0 is no limit. Raises `ValueError`, whose message names the forms that are allowed."""
    number, unit = _quantity(text, "a size like 50MB or a multiple of the memory like 0.5mem")
    if unit == MEMORY_UNIT:
        if number > MEMORIES_MAX:
            raise ValueError(f"{text!r} is above {MEMORIES_MAX:.0f} times the memory")
        return MemoryFraction(number)
    return _size(text, number, unit)


def _quantity(text: str, allowed: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2].lower() not in (*UNITS, MEMORY_UNIT):
        raise ValueError(f"{text!r} is not {allowed}")
    return float(found[1]), found[2].lower()


def _size(text: str, number: float, unit: str) -> Size:
    if unit not in UNITS:
        raise ValueError(f"{text!r} is not a size like 50MB or 256MiB")
    size_bytes = number * UNITS[unit]
    if size_bytes > BYTES_MAX:
        raise ValueError(f"{text!r} is above 2**60 bytes")
    return Size(round(size_bytes))
