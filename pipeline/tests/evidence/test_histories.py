"""Histories in numbers: a run that is larger than its heap, a real run, thousands of drawn ones.

`make evidence-pipeline` runs it; `RINGMQ_EVENTS` says how large the large one is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from children import child_environment
from drawn_histories import flawed, sound, wild
from history.checker import Rule, check
from history.records import Record, read
from pipeline.tests.spark.test_verify import agree, write
from sparks import evidence

from ringmq_pipeline.cli.errors import EXIT_FOUND
from ringmq_pipeline.jobs.histories import read_histories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of messages: each is published, confirmed, delivered and acked.
EVENTS = int(os.environ.get("RINGMQ_EVENTS", "30000000"))
BATCH = 10
TAGS = 8
HEAP = "3g"
# Of batches: one is never delivered, another one comes again after its acks.
LOST, REPEATED = 7, 11
CANNOT_RUN_HERE = 2


def write_large(path: Path, batches: int) -> None:
    with path.open("w") as file:
        for batch in range(batches):
            position, at = batch * BATCH, batch * 1e-3
            tag, first = batch % TAGS, batch // TAGS * BATCH
            messages = f'"tag": "p{tag}", "first": {first}, "last": {first + BATCH - 1}'
            run = (
                f'{{"position": {position}, "tag": "p{tag}", "number": {first}, "count": {BATCH}, '
                '"redelivered": %s}'
            )
            acked = f'"consumer": "c", "ranges": [[{position}, {position + BATCH - 1}]]'
            records = [
                ("publish", messages),
                ("confirm", f'{messages}, "epoch": 1, "master": "a"'),
                ("deliver", f'"consumer": "c", "stream": 1, "runs": [{run % "false"}]'),
                ("ack", acked),
                ("deliver", f'"consumer": "d", "stream": 1, "runs": [{run % "true"}]'),
            ]
            for kind, rest in records[: 2 if batch == LOST else 5 if batch == REPEATED else 4]:
                file.write(f'{{"kind": "{kind}", "at": {at:.3f}, "queue": "q", {rest}}}\n')
        file.write('{"kind": "drained", "at": 1e9, "queue": "q"}\n')


@evidence
@pytest.mark.slow
def test_a_history_larger_than_its_heap_is_judged(tmp_path: Path) -> None:
    batches = EVENTS // 4 // BATCH
    write_large(tmp_path / "history.jsonl", batches)
    code = "from ringmq_pipeline.cli import main; main()"
    settings = {
        "spark.driver.memory": HEAP,
        "spark.sql.shuffle.partitions": "16",
        "spark.local.dir": str(tmp_path / "spark"),
    }
    words = [sys.executable, "-c", code, "verify", "--history", str(tmp_path / "history.jsonl")]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == EXIT_FOUND, done.stderr
    summary = json.loads(done.stdout)
    assert summary["violations"] == {
        "confirmed and lost": BATCH,
        "acked, and delivered again": BATCH,
    }
    assert summary["published"] == summary["confirmed"] == batches * BATCH
    assert summary["delivered"] == batches * BATCH


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
    words = [sys.executable, "-m", "chaos", "--minutes=1", "--seed=4", "--rounds=3", "--untimed"]
    done = subprocess.run(
        [*words, f"--folder={folder}"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(done.stdout)
    history = list(read(folder / "history.jsonl"))
    assert check(history).delivered > 1000
    records = read_histories(spark, [str(folder / "history.jsonl")]).cache()
    agree(records, {"history": history})
