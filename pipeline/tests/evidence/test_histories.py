"""Histories in numbers: a run that is larger than its heap, a real run, thousands of drawn ones.

`make evidence-pipeline` runs it; `RINGMQ_EVENTS` says how large the large one is. That one takes
50 s of processor time at any size, for Java and Spark to start and to compile, and 14 us for each
event.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.pipeline.histories import PLANTED, verify_in_heap, write_history
from chaos_runs import chaos_run
from drawn_histories import flawed, sound, wild
from history.checker import Rule, check
from history.records import Record, read
from pipeline.tests.spark.test_verify import agree, write
from sparks import evidence

from ringmq_pipeline.jobs.histories import read_histories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of messages: each is published, confirmed, delivered and acked.
EVENTS = int(os.environ.get("RINGMQ_EVENTS", "30000000"))


@evidence
@pytest.mark.slow
def test_a_history_larger_than_its_heap_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    messages = write_history(path, EVENTS)
    summary = verify_in_heap(path, tmp_path / "spark", "local[*]")
    assert summary["violations"] == PLANTED
    assert summary["published"] == summary["confirmed"] == summary["delivered"] == messages


@evidence
def test_thousands_of_drawn_histories_are_judged_alike(spark: SparkSession, tmp_path: Path) -> None:
    histories: dict[str, list[Record]] = {f"wild {seed}": wild(seed) for seed in range(3000)}
    histories |= {f"sound {seed}": sound(seed, 50) for seed in range(200)}
    histories |= {f"{rule.name} {seed}": flawed(seed, rule) for seed in range(50) for rule in Rule}
    agree(read_histories(spark, [str(write(tmp_path, histories))]).cache(), histories)


@evidence
@pytest.mark.cluster
def test_a_real_run_is_judged_alike(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    chaos_run(folder, "--seed=4", "--rounds=3", within_s=300)
    history = list(read(folder / "history.jsonl"))
    assert check(history).delivered > 1000
    records = read_histories(spark, [str(folder / "history.jsonl")]).cache()
    agree(records, {"history": history})
