from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ringmq_pipeline.chart import QUEUES_MAX, busiest, save

PNG = b"\x89PNG\r\n"


def row(queue: str, hour: int, published: float | None = 10.0) -> dict[str, object]:
    return {
        "hour": datetime(2026, 11, 23, hour),
        "vhost": "/",
        "queue": queue,
        "published": published,
        "published_per_s": published,
        "delivered_per_s": 1.0,
        "acked_per_s": None,
        "depth_p50": 5.0,
        "depth_p99": 9.0,
        "redelivered_share": None,
        "drain_s": 12.5,
    }


def test_a_chart_is_a_picture_or_one_page_that_loads_nothing(tmp_path: Path) -> None:
    rows = [row("<orders> $", 8), row("<orders> $", 9, None)]
    for name in ("chart.png", "chart.html"):
        save(tmp_path / name, rows)
    assert (tmp_path / "chart.png").read_bytes().startswith(PNG)
    page = (tmp_path / "chart.html").read_text()
    assert "<svg" in page
    assert "<td>&lt;orders&gt; $</td>" in page
    assert "<td>2026-11-23 09:00</td>" in page
    assert "<script" not in page
    assert "src=" not in page


def test_only_the_busiest_queues_are_drawn() -> None:
    rows = [row(f"q{number:02}", 8, float(number)) for number in range(20)]
    assert busiest(rows) == [("/", f"q{number:02}") for number in range(19, 19 - QUEUES_MAX, -1)]
