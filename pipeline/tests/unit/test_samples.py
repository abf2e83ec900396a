from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from live_node import LiveNode

from ringmq.errors import RingMQError
from ringmq_pipeline.cli import invoke
from ringmq_pipeline.samples import COLUMNS, append, collect


class Clock:
    """Stands still, but for sleeps."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def lines(folder: Path) -> Iterator[dict[str, object]]:
    for file in sorted(folder.glob("*.jsonl")):
        yield from map(json.loads, file.read_text().splitlines())


def test_rounds_go_on_when_no_node_answers(live: LiveNode, tmp_path: Path) -> None:
    live.fill("sampled", [b"1", b"2", b"3"])
    clock = Clock(7190.0)
    told: list[str] = []

    def queues() -> list[object]:
        if clock.at == 7200.0:
            raise RingMQError("nobody is there")
        return [each for each in live.client.queues() if each.queue == "sampled"]

    assert collect(
        tmp_path / "archive",
        queues,  # type: ignore[arg-type]
        every_s=10,
        for_s=20,
        clock=clock,
        sleep=clock.sleep,
        told=lambda count, error: told.append(f"{count} {error}"),
    ) == (2, 1)
    assert told == ["1 ", "1 nobody is there", "2 "]
    assert [file.name for file in sorted((tmp_path / "archive").iterdir())] == [
        "1970-01-01T01.jsonl",
        "1970-01-01T02.jsonl",
    ]
    first, second = lines(tmp_path / "archive")
    assert (first["at"], second["at"]) == (7190.0, 7210.0)
    assert [*first] == [column.split()[0] for column in COLUMNS.split(", ")]
    assert (first["queue"], first["messages"], first["next_position"]) == ("sampled", 3, 3)
    assert (first["bytes"], first["delivered_total"]) == (3, 0)


def test_deliveries_and_repeats_are_in_the_samples(live: LiveNode, tmp_path: Path) -> None:
    live.fill("repeated", [b"1", b"2"])
    for _ in range(2):
        with live.client.consumer("repeated") as consumer:
            got = 0
            while got < 2:
                batch = consumer.next_batch(10)
                assert batch is not None
                got += len(batch.bodies)
    append(tmp_path, [live.client.queue("repeated")], 0.0)
    (line,) = lines(tmp_path)
    assert (line["delivered_total"], line["redelivered_total"]) == (4, 2)


def test_the_verb_collects_and_ends(live: LiveNode, tmp_path: Path) -> None:
    live.client.declare_queue("collected")
    words = ["collect", "--endpoints", live.address, "--to", str(tmp_path), "--every", "20ms"]
    assert invoke([*words, "--for", "30ms"]) == 0
    found = [line for line in lines(tmp_path) if line["queue"] == "collected"]
    assert len(found) >= 1
