"""The examples of the pipeline run as a newcomer runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest
from live_node import LiveNode
from sparks import evidence

from ringmq_pipeline.java import ensure_java
from ringmq_pipeline.session import LOOPBACK

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline"
RUN_S = 300.0


@evidence
@pytest.mark.slow
def test_a_queue_becomes_a_table_and_a_plot(live: LiveNode, tmp_path: Path) -> None:
    words = [str(EXAMPLES / "queue_to_table.py"), str(tmp_path / "lake"), live.address]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr
    assert "5000 orders are in the table, 2 are quarantined" in done.stdout
    assert "0 messages are left in the queue" in done.stdout
    assert (
        sum(int(line.split()[1]) for line in done.stdout.splitlines() if ": " in line[:3]) == 5000
    )
    assert (tmp_path / "lake" / "orders.png").stat().st_size
    # It leaves nothing behind.
    assert "example.orders" not in {info.queue for info in live.client.queues()}


@evidence
@pytest.mark.slow
def test_a_declarative_pipeline_fills_its_tables_once(live: LiveNode, tmp_path: Path) -> None:
    """Run twice: the second run has only what is new."""
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLES / "declarative", folder)
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text().replace("/tmp/ringmq-orders", str(tmp_path / "storage"))
    spec.write_text(text.replace(text.split("example.endpoints: ")[1].split()[0], live.address))
    [command] = [line for line in text.splitlines() if "spark-pipelines run" in line]
    words = command.split()[2:]
    ensure_java()
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    environment.pop("SPARK_HOME", None)
    orders = [b'{"id": %d, "country": "A", "amount": 2.5}' % number for number in range(1000)]
    for ran in (1, 2):
        live.fill("example.orders", orders)
        done = subprocess.run(
            [str(Path(sys.executable).with_name("spark-pipelines")), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S,
            env=environment,
            cwd=folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert live.stat("example.orders").messages == 0
        rows = pyarrow.dataset.dataset(parquet(folder, "orders")).to_table()
        assert sorted(rows["position"].to_pylist()) == [*range(1000 * ran)]
        view = pyarrow.dataset.dataset(parquet(folder, "amount_by_country")).to_table()
        assert view.to_pylist() == [{"country": "A", "orders": 1000 * ran, "amount": 2500.0 * ran}]
    live.client.delete_queue("example.orders")


def parquet(folder: Path, table: str) -> list[str]:
    return [str(file) for file in (folder / "spark-warehouse" / table).glob("*.parquet")]
