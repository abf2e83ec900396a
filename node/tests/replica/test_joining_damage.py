"""A joiner whose master has lost bodies itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from node.tests.replica.test_joining import Joiner, Source, _quick, scenario, until
from node.tests.storage.workload import bodies

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.replica import joining as joining_module
from ringmq_node.replica.fetching import Fetched, FetchMessages, Lacking, SourceError

quick = _quick


class Member:
    """A synchronised member: it has the bodies that the source has, except `lost`."""

    def __init__(self, source: Source, lost: Sequence[int]) -> None:
        self.source = source
        self.lost = RangeSet((at, at) for at in lost)
        self.asked: list[list[Range]] = []
        self.answers = True

    async def fetch(self, ranges: Sequence[Range]) -> AsyncIterator[Fetched]:
        self.asked.append([*ranges])
        if not self.answers:
            raise SourceError("planted")
        lacking = [part for pair in ranges for part in self.lost.intersection(*pair)]
        wanted = RangeSet(ranges)
        wanted.subtract(lacking)
        async for piece in self.source.fetch_messages(wanted.ranges()):
            yield piece
        live = self.source.queue.state.live
        yield Lacking(tuple(part for pair in lacking for part in live.intersection(*pair)))


async def join(joiner: Joiner, source: Source, master: Member, *others: Member) -> None:
    assert joiner.joining is not None

    def fetches() -> list[FetchMessages]:
        return [other.fetch for other in others]

    await joiner.joining.run(source.fetch_state, master.fetch, fetches)


def test_another_synchronised_member_is_asked(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(10)
        joiner.join()
        master, second, third = (Member(source, lost) for lost in ([3, 4, 8], [4], []))
        await join(joiner, source, master, second, third)
        joiner.check_same()
        assert second.asked == [[(3, 4), (8, 8)]]
        assert third.asked == [[(4, 4)]]

    scenario(tmp_path, play)


def test_what_all_have_lost_does_not_keep_it_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(6)
        joiner.join()
        await join(joiner, source, Member(source, [1, 2, 3]), Member(source, [2]))
        assert [*joiner.queue.missing] == [(2, 2)]
        assert bodies(joiner.queue).keys() == {0, 1, 3, 4, 5}
        assert joiner.queue.fills_durable

    scenario(tmp_path, play)
    assert any("damaged on every synchronised replica: 2" in text for text in caplog.messages)


def test_while_one_does_not_answer_it_goes_on_asking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The silent member may be the only one with the body. It is logged once."""

    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(6)
        joiner.join()
        silent = Member(source, [])
        silent.answers = False
        running = asyncio.create_task(
            join(joiner, source, Member(source, [2]), silent, Member(source, [2]))
        )
        await until(lambda: len(silent.asked) >= 3)
        assert not running.done()
        silent.answers = True
        await running
        joiner.check_same()

    assert joining_module.TELL_S > 5
    scenario(tmp_path, play)
    told = [text for text in caplog.messages if "that answers (planted): 2" in text]
    assert len(told) == 1
