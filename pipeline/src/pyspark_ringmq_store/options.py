"""The options of the source `ringmq_store`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ringmq_pipeline.option_values import (
    OptionError,
    boolean,
    known_only,
    one_of,
    payload,
    positive,
)

KNOWN: Final = ("stores", "queues", "rows", "payload", "checksums", "minPartitions")


class Rows(Enum):
    MESSAGES = "messages"
    PIECES = "pieces"
    QUEUES = "queues"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    # Directories by the name of their node.
    stores: tuple[tuple[str, str], ...]
    # By name or id; none: all.
    queues: tuple[str, ...]
    rows: Rows
    # Of each body; None: all of it.
    body_bytes_max: int | None
    # Whether each body's CRC-32 is wanted.
    checksums: bool
    min_partitions: int


def parse(options: Mapping[str, str]) -> StoreOptions:
    """Raises `OptionError`."""
    given = known_only(options, KNOWN, "the source ringmq_store")
    queues = given.get("queues", "")
    return StoreOptions(
        stores=_stores(given.get("stores", "")),
        queues=tuple(each.strip() for each in queues.split(",") if each.strip()),
        rows=one_of(Rows)("rows", given.get("rows", "messages")),
        body_bytes_max=payload("payload", given.get("payload", "full")),
        checksums=boolean("checksums", given.get("checksums", "true")),
        min_partitions=positive("minPartitions", given.get("minPartitions", "4")),
    )


def _stores(value: str) -> tuple[tuple[str, str], ...]:
    """`a=DIR,b=DIR`, or `DIR`, whose name is then that of its last folder."""
    found: dict[str, str] = {}
    for each in filter(None, map(str.strip, value.split(","))):
        name, equals, folder = each.partition("=")
        if not equals:
            name, folder = each.rstrip("/").rpartition("/")[2], each
        if not name or not folder or name in found:
            raise OptionError("stores", f"{each!r} is not NAME=DIR with a name of its own")
        found[name] = folder
    if not found:
        raise OptionError("stores", "give the data directory of at least one node, as NAME=DIR")
    return tuple(found.items())
