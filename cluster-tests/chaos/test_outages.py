"""Outages of the registry that overlap, as a storm has them."""

from __future__ import annotations

import asyncio

from chaos.outages import Outage, Outages
from loops import run


class Etcd:
    def __init__(self) -> None:
        self.is_running = True
        self.done: list[str] = []

    def kill(self) -> None:
        self.is_running = False
        self.done.append("kill")

    def launch(self) -> None:
        assert not self.is_running
        self.is_running = True
        self.done.append("launch")

    def stop(self) -> None:
        assert self.is_running
        self.done.append("stop")

    def resume(self) -> None:
        assert self.is_running
        self.done.append("resume")


def played(*outages: tuple[Outage, float]) -> list[str]:
    async def main() -> list[str]:
        etcd = Etcd()
        away = Outages(etcd)
        async with asyncio.TaskGroup() as tasks:
            for outage, for_s in outages:
                tasks.create_task(away.take_away(outage, for_s))
        return etcd.done

    return run(main())


def test_it_is_back_when_the_last_outage_is_over() -> None:
    """The second one to end launched it though it ran, and that ended the run."""
    done = played((Outage.KILLED, 0.02), (Outage.KILLED, 0.06))
    assert done.count("launch") == 1
    assert done[-2:] == ["launch", "resume"]


def test_a_dead_one_is_launched_once_nobody_wants_it_dead_and_stands_still_for_the_others() -> None:
    done = played((Outage.STOPPED, 0.1), (Outage.KILLED, 0.03))
    assert done[-3:] == ["launch", "stop", "resume"]
    assert played((Outage.KILLED, 0.1), (Outage.STOPPED, 0.03))[-2:] == ["launch", "resume"]
