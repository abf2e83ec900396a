"""What the logs of a queue's replicas have in common."""

from __future__ import annotations

import pytest

from ringmq_pipeline.jobs.diverge import (
    AbsentReplica,
    Comparable,
    ReplicaLog,
    absent_replicas,
    common_part,
)


def log(node: str, last_op: int, end: int, *epochs: tuple[int, int, int]) -> ReplicaLog:
    return ReplicaLog(node, last_op, end, epochs)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(log("b", 9, 90, (1, 1, 0)), Comparable(90, False), id="the same"),
        pytest.param(log("b", 7, 70, (1, 1, 0)), Comparable(70, False), id="stopped earlier"),
        pytest.param(
            log("b", 12, 120, (1, 1, 0), (2, 10, 90)), Comparable(90, False), id="went on later"
        ),
        pytest.param(
            log("b", 12, 120, (1, 1, 0), (2, 7, 60)), Comparable(60, True), id="parted at op 7"
        ),
        pytest.param(log("b", 12, 120, (5, 1, 0)), Comparable(0, True), id="nothing in common"),
        pytest.param(log("b", 0, 0), Comparable(0, False), id="empty"),
    ],
)
def test_logs_are_compared_up_to_where_they_part(other: ReplicaLog, expected: Comparable) -> None:
    assert common_part([log("a", 9, 90, (1, 1, 0)), other]) == expected


def test_a_store_without_a_queue_that_others_have_is_named() -> None:
    rows = [
        {"queue_id": "1", "queue": "everywhere", "node": node, "status": "ok"} for node in "abc"
    ]
    rows.append({"queue_id": "2", "queue": "once", "node": "a", "status": "ok"})
    rows.append({"queue_id": "2", "queue": "once", "node": "b", "status": "unreadable"})
    rows.append({"queue_id": None, "queue": "", "node": "c", "status": "unreadable"})  # type: ignore[dict-item]
    absent = [AbsentReplica("c", "once", "2")]
    assert absent_replicas(rows, ["a", "b", "c"]) == absent  # type: ignore[arg-type]
    assert absent_replicas(rows, ["a", "b", "c"], 2) == []  # type: ignore[arg-type]
    assert absent_replicas(rows, ["a", "b", "c"], 5) == absent  # type: ignore[arg-type]
