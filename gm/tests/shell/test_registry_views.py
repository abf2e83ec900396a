"""The views in the registry: the events that rings are given, and the ends of proposals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import loops
import pytest
from waiting import until

from ringmq_gm import MemberId, View, first_view, ring_key
from ringmq_gm.core.events import Event, ProposalEnded, ProposalOutcome, Propose, ViewLearned
from ringmq_gm.registry.base import (
    CommitUnknownError,
    Delete,
    Guard,
    Operation,
    Put,
    RegistryError,
    RegistryUnavailableError,
    Session,
    Snapshot,
)
from ringmq_gm.registry.sqlite import SqliteRegistry
from ringmq_gm.registry_views import RegistryViews

A, B = MemberId("a", 1), MemberId("b", 1)
FIRST = first_view([A, B], 1)
SECOND = View(2, FIRST.members[:1], 1)
OTHER_SECOND = View(2, FIRST.members[1:], 1)


class FaultyRegistry(SqliteRegistry):
    """The next call of each kind fails with the error that is put here; commits are counted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.list_errors: list[RegistryError] = []
        self.commit_errors: list[RegistryError] = []
        self.late: list[Snapshot] = []
        self.commits = 0
        self.lists = 0
        self.keys_read = 0

    async def list(self, prefix: str) -> Snapshot:
        if self.list_errors:
            raise self.list_errors.pop()
        if self.late:
            return self.late.pop()
        self.lists += 1
        return await super().list(prefix)

    async def read(self, keys: Sequence[str]) -> Snapshot:
        if self.list_errors:
            raise self.list_errors.pop()
        if self.late:
            return self.late.pop()
        self.keys_read += len(keys)
        return await super().read(keys)

    async def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> int | None:
        self.commits += 1
        if self.commit_errors:
            raise self.commit_errors.pop()
        return await super().commit(guards, operations, session=session)


class Bench:
    """Views over a registry that may fail, and to which another process writes as well."""

    def __init__(self, path: Path) -> None:
        self.registry = FaultyRegistry(path / "registry.db")
        self.other = SqliteRegistry(path / "registry.db")
        self.told: list[tuple[str, Event]] = []
        # Whether the registry counted as answering when each of `told` came.
        self.answered: list[bool] = []
        # The rings whose view was said to be another one.
        self.changed: list[str] = []
        self.views = RegistryViews(
            self.registry, tell=self._tell, changed=lambda ring: self.changed.append(ring)
        )

    def _tell(self, ring: str, event: Event) -> None:
        self.told.append((ring, event))
        self.answered.append(self.views.answered)

    async def write(self, ring: str, view: View) -> None:
        assert await self.other.commit([], [Put(ring_key(ring), view.encode())]) is not None

    async def host(self, *rings: str) -> None:
        """Makes these rings, and waits until each was told its first view."""
        for ring in rings:
            await self.write(ring, FIRST)
            self.views.introduce(ring)
        await until(lambda: all((ring, ViewLearned(FIRST)) in self.told for ring in rings))
        self.told.clear()
        self.answered.clear()
        self.registry.commits = self.registry.lists = self.registry.keys_read = 0

    def ended(self, outcome: ProposalOutcome) -> list[str]:
        return [
            ring
            for ring, event in self.told
            if isinstance(event, ProposalEnded) and event.outcome is outcome
        ]


@asynccontextmanager
async def bench(path: Path) -> AsyncIterator[Bench]:
    made = Bench(path)
    running = asyncio.create_task(made.views.run())
    await made.views.read.wait()
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait({running})
        await made.registry.close()
        await made.other.close()
        assert running.cancelled(), running.exception()


def run(tmp_path: Path, story: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bench(tmp_path) as made, asyncio.timeout(20):
            await story(made)

    loops.run(main())


def test_proposals_of_many_rings_go_in_one_commit(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        rings = [f"r{index}" for index in range(30)]
        await bench.host(*rings)
        for ring in rings:
            bench.views.propose(ring, Propose(1, SECOND))
        await until(lambda: bench.ended(ProposalOutcome.WON) == rings)
        assert bench.registry.commits == 1
        entry = await bench.other.get(ring_key("r7"))
        assert entry is not None
        assert View.decode(entry.value) == SECOND

    run(tmp_path, story)


def test_a_lost_proposal_does_not_cost_the_others_their_turn(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        rings = ["p", "q", "r"]
        await bench.host(*rings)
        async with asyncio.timeout(30):
            await bench.write("q", OTHER_SECOND)
        # Perhaps before the watch has seen it: then the guard finds out.
        for ring in rings:
            bench.views.propose(ring, Propose(1, SECOND))
        await until(lambda: bench.ended(ProposalOutcome.WON) == ["p", "r"])
        assert bench.ended(ProposalOutcome.LOST) == ["q"]
        assert ("q", ViewLearned(OTHER_SECOND)) in bench.told
        assert bench.registry.commits <= 2

    run(tmp_path, story)


@pytest.mark.parametrize("others", [0, 500])
def test_lost_proposals_are_found_without_a_look_at_all_rings(tmp_path: Path, others: int) -> None:
    """Of two neighbours of a dead member one loses, in each of ten thousand rings."""

    async def story(bench: Bench) -> None:
        rings = [f"r{number}" for number in range(50)]
        for start in range(0, others, 100):
            puts = [Put(ring_key(f"other{start + i}"), FIRST.encode()) for i in range(100)]
            assert await bench.other.commit([], puts) is not None
        await bench.host(*rings)
        # All at once, and no turn of the loop in between: the watch shows them later.
        puts = [Put(ring_key(ring), OTHER_SECOND.encode()) for ring in rings]
        assert await bench.other.commit([], puts) is not None
        for ring in rings:
            bench.views.propose(ring, Propose(1, SECOND))
        await until(lambda: len(bench.ended(ProposalOutcome.LOST)) == len(rings))
        assert bench.registry.lists == 0
        assert bench.registry.keys_read <= 3 * len(rings)

    run(tmp_path, story)


def test_a_commit_without_an_answer_is_unknown(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p")
        bench.registry.commit_errors = [CommitUnknownError("cut")]
        bench.views.propose("p", Propose(1, SECOND))
        await until(lambda: bench.ended(ProposalOutcome.UNKNOWN) == ["p"])
        # The next read is answered, and may come before the test looks again.
        assert not bench.answered[0]

    run(tmp_path, story)


def test_a_commit_that_was_not_taken_is_lost(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p")
        bench.registry.commit_errors = [RegistryUnavailableError("away")]
        bench.views.propose("p", Propose(1, SECOND))
        await until(lambda: bench.ended(ProposalOutcome.LOST) == ["p"])

    run(tmp_path, story)


def test_a_refresh_is_repeated_until_it_is_answered(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p", "q")
        bench.registry.list_errors = [RegistryUnavailableError("away")] * 3
        bench.views.introduce("p")  # It is told the known view at once.
        assert bench.told == [("p", ViewLearned(FIRST))]
        bench.views.refresh("p")
        bench.views.refresh("q")
        await until(lambda: not bench.registry.list_errors and bench.views.answered)

    run(tmp_path, story)


def test_a_ring_that_is_deleted_and_made_again_is_told_its_end_first(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p")
        await bench.write("p", SECOND)
        await until(lambda: bench.told == [("p", ViewLearned(SECOND))])
        # In one commit, so that no watch can see the moment between.
        await bench.write("p", FIRST)
        await until(lambda: len(bench.told) == 2)
        assert bench.told[1] == ("p", ViewLearned(None))
        bench.views.forget("p")
        bench.views.introduce("p")
        assert bench.told[2] == ("p", ViewLearned(FIRST))

    run(tmp_path, story)


def test_a_deleted_ring_is_told_its_end_and_others_are_not(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p", "pp")
        await bench.other.commit([], [Delete(ring_key("p"))])
        await until(lambda: bench.told == [("p", ViewLearned(None))])
        bench.views.refresh("pp")
        bench.views.refresh("p")
        await bench.write("pp", SECOND)
        await until(lambda: bench.told[1:] == [("pp", ViewLearned(SECOND))])

    run(tmp_path, story)


def test_deleted_rings_are_forgotten(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        rings = [f"r{index}" for index in range(20)]
        await bench.host("p", *rings)
        await bench.other.commit([], [Delete(ring_key(ring)) for ring in rings])
        await until(lambda: len(bench.told) == len(rings))
        # One that never was is looked for, too; then the watch comes past that revision.
        bench.views.introduce("never")
        await until(lambda: not bench.views._to_refresh)
        await bench.write("p", SECOND)
        await until(lambda: [*bench.views._known] == ["p"])
        assert bench.views.view("p") is not None
        # Its first view had a master and a mirror, those of the deleted rings too.
        await until(lambda: (+bench.views.masters, +bench.views.mirrors) == ({"a": 1}, {}))
        assert bench.views.view("q") is None
        bench.views.propose("r1", Propose(1, SECOND))
        await until(lambda: bench.ended(ProposalOutcome.LOST) == ["r1"])

    run(tmp_path, story)


def test_a_view_that_was_read_before_a_deletion_is_not_learned_after_it(tmp_path: Path) -> None:
    """The answer of a look takes longer than the watch."""

    async def story(bench: Bench) -> None:
        await bench.host("p", "q")
        before = await bench.registry.list(ring_key(""))
        await bench.other.commit([], [Delete(ring_key("p"))])
        await until(lambda: "p" not in bench.views._known)
        bench.registry.late = [before]
        bench.views.refresh("p")
        await until(lambda: not bench.registry.late)
        # One made again is.
        await bench.write("p", SECOND)
        await until(lambda: bench.told[1:] == [("p", ViewLearned(SECOND))])
        assert bench.told == [("p", ViewLearned(None)), ("p", ViewLearned(SECOND))]

    run(tmp_path, story)


@pytest.mark.logs("ring 'p': its view in the registry can't be read")
def test_bytes_that_are_no_view_are_told_to_nobody_until_the_key_is_put_right(
    tmp_path: Path,
) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p", "q")
        await bench.other.commit([], [Put(ring_key("p"), b"garbage")])
        await until(lambda: "p" in bench.views.unreadable)
        assert bench.views.view("p") is None
        assert bench.changed.count("p") == 1
        assert bench.views.members_on({"a"}) == {A}
        bench.views.propose("p", Propose(1, SECOND))
        bench.views.propose("q", Propose(1, SECOND))
        await until(lambda: bench.ended(ProposalOutcome.WON) == ["q"])
        assert bench.ended(ProposalOutcome.LOST) == ["p"]
        bench.views.refresh("p")
        await bench.write("p", SECOND)
        await until(lambda: ("p", ViewLearned(SECOND)) in bench.told)
        assert bench.views.unreadable == {}
        assert ("p", ViewLearned(None)) not in bench.told

    run(tmp_path, story)


def test_settled_means_that_no_proposal_is_left(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.host("p", "q")
        bench.views.propose("p", Propose(1, SECOND))
        await bench.views.wait_settled("q")
        await bench.views.wait_settled("p")
        waiting = bench.registry.commits
        await bench.other.get(ring_key("p"))
        assert bench.registry.commits == waiting

    run(tmp_path, story)
