"""Samples with known figures, rolled up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ringmq_pipeline.cli import invoke
from ringmq_pipeline.jobs.rollup import read_samples, rollup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def line(at: float, position: int, messages: int, **more: Any) -> str:
    found = {
        "at": at,
        "vhost": "/",
        "queue": "q",
        "id": "1",
        "master": "a.1",
        "messages": messages,
        "bytes": messages * 10,
        "next_position": position,
        "delivered_total": position,
        "redelivered_total": 0,
        "acknowledged_total": position - messages,
    }
    return json.dumps(found | more)


SAMPLES = (
    # Ten minutes: 600 more published, 900 acked, 30 deliveries were repeats.
    line(0, 1000, 500),
    line(300, 1300, 300, delivered_total=1330, redelivered_total=30),
    line(600, 1600, 200, delivered_total=1630, redelivered_total=30),
    # An hour's end is in the middle of this interval: half of it belongs to the next hour.
    line(3500, 2000, 200, queue="late", id="2"),
    line(3700, 2400, 200, queue="late", id="2"),
    # The collector was away.
    line(9000, 9000, 0, queue="late", id="2"),
    # A new master counts from 0; positions go on.
    line(0, 100, 0, queue="failover", id="3"),
    line(100, 150, 0, queue="failover", id="3", master="b.1", delivered_total=20),
    # The queue was declared anew.
    line(0, 5000, 0, queue="anew", id="4"),
    line(10, 10, 10, queue="anew", id="5"),
    line(20, 20, 20, queue="anew", id="5"),
    '{"at": 30, "vho',
)


def test_rates_depths_and_times_are_those_of_the_samples(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "1970-01-01T00.jsonl").write_text("\n".join(SAMPLES))
    rows = {
        (row["queue"], row["hour"].hour): row
        for row in rollup(read_samples(spark, [str(tmp_path)])).collect()
    }
    assert rows.keys() == {
        *(("q", 0), ("late", 0), ("late", 1), ("late", 2), ("failover", 0), ("anew", 0))
    }
    q = rows["q", 0]
    assert (q["published"], q["delivered"], q["acked"], q["redelivered"]) == (600, 630, 900, 30)
    assert (q["published_per_s"], q["acked_per_s"], q["seconds"]) == (1.0, 1.5, 600)
    assert (q["depth_p50"], q["depth_last"], q["bytes_last"]) == (300, 200, 2000)
    assert q["depth_p99"] == pytest.approx(496)
    assert q["redelivered_share"] == pytest.approx(30 / 630)
    # 300 fewer in 600 seconds: 200 are gone in 400.
    assert q["drain_s"] == 400
    for hour in (0, 1):
        late = rows["late", hour]
        assert (late["published"], late["seconds"], late["drain_s"]) == (200, 100, None)
    assert (rows["late", 2]["samples"], rows["late", 2]["published"]) == (1, None)
    failover = rows["failover", 0]
    assert (failover["published"], failover["delivered"]) == (50, 20)
    assert (failover["failovers"], failover["drain_s"]) == (1, 0)
    assert (rows["anew", 0]["published"], rows["anew", 0]["samples"]) == (10, 3)


@pytest.mark.compute
def test_the_verb_writes_rows_and_charts(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "1970-01-01T00.jsonl").write_text("\n".join(SAMPLES[:3]))
    to, chart = tmp_path / "rows", tmp_path / "chart.html"
    words = ["rollup", "--metrics", str(tmp_path / "archive"), "--to", str(to)]
    assert invoke([*words, "--chart", str(chart)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["queues"], summary["published"]) == (1, 1, 600)
    assert spark.read.parquet(str(to)).count() == 1
    assert "<td>600</td>" in chart.read_text()
    assert invoke([*words, "--chart", "chart.gif"]) == 2
