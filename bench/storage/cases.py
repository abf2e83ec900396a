"""The cases: their variants, the disk space that they may take, and the goals for our figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.goals import Goal
from bench.storage import rabbit, variants
from bench.storage.context import BUDGET_BYTES
from bench.storage.round_result import OURS
from bench.storage.variants import (
    BACKLOG_MESSAGES,
    BATCH,
    CHURN_BYTES,
    CHURN_LIVE_SHARE,
    FAN_OUT_QUEUES,
    FAN_OUT_SIZE,
    LIMIT,
    SIZE,
    WINDOW,
    Variant,
)


@dataclass(frozen=True, slots=True)
class Case:
    """`disk_bytes` is at scale 1, of one variant at a time. A long one has rounds of its own."""

    name: str
    title: str
    variants: Mapping[str, Variant]
    disk_bytes: int
    is_long: bool = False
    goals: tuple[Goal, ...] = ()


# While a journal is emptied into segments its messages are on the disk twice.
_BACKLOG_DISK = BACKLOG_MESSAGES * SIZE * 3 // 2

CASES = (
    Case(
        "append",
        f"append, confirmed when durable: batches of {BATCH} x {SIZE} B, {WINDOW} in flight",
        variants.append("append", 800_000, BATCH, WINDOW),
        disk_bytes=2_000_000_000,
        goals=(Goal("mb_per_s", beside=LIMIT, at_least=0.7),),
    ),
    Case(
        "append-singles",
        f"append, confirmed when durable: single messages of {SIZE} B, 100 in flight",
        variants.append("append-singles", 100_000, 1, 100),
        disk_bytes=500_000_000,
    ),
    Case(
        "append-alone",
        f"append, confirmed when durable: single messages of {SIZE} B, one at a time",
        variants.append("append-alone", 10_000, 1, 1),
        disk_bytes=100_000_000,
    ),
    Case(
        "consume",
        f"read and ack of a backlog of {SIZE} B messages",
        {OURS: variants.consume},
        disk_bytes=1_500_000_000,
    ),
    Case(
        "fan-out",
        f"bodies of {FAN_OUT_SIZE >> 10} KiB to {FAN_OUT_QUEUES} queues each",
        {OURS: variants.fan_out},
        # Should every queue have its own copy.
        disk_bytes=5_500_000_000,
        goals=(Goal("written_per_byte", at_most=1.5),),
    ),
    *(
        Case(
            name,
            f"{CHURN_BYTES >> 20} MiB published in bodies of {size >> 10} KiB ({what}), "
            f"removed at random so that 1/{CHURN_LIVE_SHARE} lives",
            {OURS: variants.compaction(name, size)},
            disk_bytes=2_500_000_000,
        )
        for name, size, what in (
            ("compaction", 64 << 10, "each a record of its own"),
            ("compaction-blocks", 4 << 10, "four in a record"),
        )
    ),
    Case(
        "queues",
        "recovery after kill -9: one message in each of many queues",
        {OURS: variants.queues},
        disk_bytes=1_000_000_000,
        goals=(Goal("recover_s", at_most=10),),
    ),
    Case(
        "backlog",
        f"backlog of {SIZE} B messages and its drain, budget {BUDGET_BYTES >> 20} MiB",
        variants.beside_rabbit(variants.backlog, rabbit.backlog),
        disk_bytes=_BACKLOG_DISK,
        is_long=True,
        goals=(
            Goal("rss_peak_mib", at_most=BUDGET_BYTES >> 20),
            Goal("publish_last_to_first", at_least=0.8),
            Goal("drain_to_publish", at_least=0.5),
        ),
    ),
    Case(
        "recovery",
        "recovery of that backlog after kill -9, from a cold page cache",
        variants.beside_rabbit(variants.recovery, rabbit.recovery),
        disk_bytes=_BACKLOG_DISK,
        is_long=True,
    ),
)
