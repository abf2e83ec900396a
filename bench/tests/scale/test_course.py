"""The course over a system that is only told; and a line of RabbitMQ's."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from bench.measure import BenchError
from bench.scale import course
from bench.scale.course import Course, ScaleResult
from bench.scale.rabbit import is_well
from loops import run


class ToldSystem:
    """Each look finds one queue more that is well."""

    name = "told"

    def __init__(self, *, refills: bool, looks_fail: bool = False) -> None:
        self.refills = refills
        self.looks_fail = looks_fail
        self.told: list[str] = []
        self.queues = 0
        self.found = 0

    async def start(self) -> None:
        self.told.append("start")

    async def stop(self) -> None:
        self.told.append("stop")

    def pids(self) -> Sequence[int]:
        return [os.getpid()]

    async def declare(self, queues: Sequence[int]) -> None:
        self.queues += len(queues)
        self.told.append(f"declare {queues[0]} to {queues[-1]}")

    async def publish(self, queues: Sequence[int], messages: int) -> None:
        self.told.append(f"publish {messages} to {len(queues)}")

    async def well(self, replicas: int) -> int:
        if self.looks_fail:
            return 0
        self.found += self.queues // 2
        if self.found >= self.queues:
            self.found = 0
            self.told.append(f"{replicas} replicas each")
            return self.queues
        return self.found

    async def kill(self) -> None:
        self.told.append("kill")

    async def bring_back(self) -> None:
        self.told.append("bring back")

    async def wait_ready(self) -> None:
        self.told.append("ready")

    def empty(self) -> None:
        self.told.append("empty")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "IDLE_S", 0.01)
    monkeypatch.setattr(course, "_POLL_S", 0.001)
    monkeypatch.setattr(course, "_POLL_S_MAX", 0.001)


def played(system: ToldSystem, *, queues: int = 1500, messages: int = 0) -> ScaleResult:
    result = ScaleResult(system.name, queues, messages, declared_at_once=1)
    return run(Course(system, result, lambda _: None).play())


def test_a_system_that_refills() -> None:
    system = ToldSystem(refills=True)
    result = played(system, messages=3)
    assert system.told == [
        "start",
        *("declare 0 to 999", "declare 1000 to 1499", "3 replicas each", "publish 3 to 1500"),
        *("kill", "0 replicas each", "bring back", "3 replicas each"),
        *("kill", "0 replicas each", "empty", "bring back", "ready", "3 replicas each"),
        "stop",
    ]
    assert len(result.declare_cpu_ms_per_queue) == 2
    assert result.empty_rejoin_s is not None
    assert result.empty_ready_s is not None
    assert result.empty_rejoin_s >= result.empty_ready_s


def test_a_system_that_does_not_refill() -> None:
    system = ToldSystem(refills=False)
    result = played(system)
    assert system.told[-4:] == ["0 replicas each", "bring back", "3 replicas each", "stop"]
    assert (result.empty_ready_s, result.empty_rejoin_s) == (None, None)


def test_queues_that_are_never_well_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "PHASE_S_MAX", 0.05)
    system = ToldSystem(refills=False, looks_fail=True)
    with pytest.raises(BenchError, match="told: 0 of 10 queues are well"):
        played(system, queues=10)
    assert system.told[-1] == "stop"


def test_a_line_of_a_mirrored_queue() -> None:
    pid, mirrors = "<bench2@localhost.1.5.0>", "[<bench1@localhost.1.2.0>, <bench3@localhost.9.1>]"
    line = f"classic.scale000000\t{pid}\t{mirrors}\trunning"
    assert is_well(line, 3, "")
    assert is_well(line, 3, "bench1@localhost")
    assert not is_well(line, 3, "bench2@localhost")
    assert not is_well(f"q\t{pid}\t[]\trunning", 3, "")
    assert is_well(f"q\t{pid}\t[]\trunning", 0, "")
    assert not is_well(f"q\t{pid}\t\tdown", 0, "")
    assert not is_well("q\t\t\tcrashed", 0, "")
    assert not is_well("", 0, "")
