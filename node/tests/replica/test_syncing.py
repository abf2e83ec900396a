"""Fetching by an operator's word, at a rate, and the synchronisation that comes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from loops import run
from node.tests.replica.test_joining import Joiner, Source, scenario, until
from waiting import leeway

from ringmq_node.model.info import SyncInfo, SyncPhase
from ringmq_node.model.settings import SyncMode, SyncSettings
from ringmq_node.queue.block import Block
from ringmq_node.replica.catchup import FETCH_BYTES_MAX
from ringmq_node.replica.fetching import Fetched
from ringmq_node.replica.syncing import Pace, Syncing, Word

MANUAL = SyncSettings(SyncMode.MANUAL)


def phase(joiner: Joiner) -> SyncPhase | None:
    info = joiner.syncing.info(len(joiner.queue.missing))
    return None if info is None else info.phase


async def joined_manually(source: Source, joiner: Joiner) -> asyncio.Task[None]:
    """A joiner that lacks ten messages, and fetches none of them."""
    source.publish_many(10)
    joiner.syncing.configure(MANUAL)
    joiner.join()
    running = asyncio.create_task(joiner.run())
    await until(lambda: phase(joiner) is SyncPhase.MANUAL)
    assert joiner.syncing.info(10) == SyncInfo(SyncPhase.MANUAL, 10, 0, 0)
    assert len(joiner.queue.missing) == 10
    return running


def test_manual_fetches_nothing_until_an_operator_asks(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        running = await joined_manually(source, joiner)
        source.publish_many(3)
        joiner.deliver()
        await asyncio.sleep(0.02)
        assert source.asked == []
        joiner.syncing.say(Word.FETCH)
        await running
        joiner.check_same()
        info = joiner.syncing.info(0)
        assert info is not None
        assert (info.phase, info.messages_fetched) == (SyncPhase.WRITING, 10)
        joiner.syncing.ended(synchronised=True)
        assert phase(joiner) is None

    scenario(tmp_path, play)


def test_a_replica_that_lacks_nothing_any_more_is_synchronised_by_itself(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        running = await joined_manually(source, joiner)
        source.publish_many(2)
        source.remove((0, 6))
        joiner.deliver()
        await asyncio.sleep(0.02)
        assert not running.done()
        source.remove((7, 9))
        joiner.deliver()
        await running
        joiner.check_same()
        assert source.asked == []

    scenario(tmp_path, play)


def test_a_policy_that_becomes_automatic_begins_the_fetch(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        running = await joined_manually(source, joiner)
        joiner.syncing.configure(SyncSettings())
        await running
        joiner.check_same()

    scenario(tmp_path, play)


def test_a_fetch_that_is_stopped_keeps_what_it_has_and_goes_on_when_asked(tmp_path: Path) -> None:
    async def play(source: Source, joiner: Joiner) -> None:
        source.publish_many(100)
        joiner.join()
        going = asyncio.Event()

        async def stop_after_four(pieces: int) -> None:
            if pieces == 4:
                joiner.syncing.say(Word.STOP)
                await going.wait()

        source.before_piece = stop_after_four
        running = asyncio.create_task(joiner.run())
        await until(lambda: phase(joiner) is SyncPhase.CANCELLED)
        going.set()
        await until(lambda: source.pieces_ended == 1)
        missing = len(joiner.queue.missing)
        assert 0 < missing < 100
        await asyncio.sleep(0.02)
        assert (len(joiner.queue.missing), len(source.asked)) == (missing, 1)
        source.before_piece = None
        joiner.syncing.say(Word.FETCH)
        await running
        joiner.check_same()
        # Nothing was fetched twice: the second call asked for the rest.
        assert sum(last - first + 1 for first, last in source.asked[1]) == missing

    scenario(tmp_path, play)


def test_an_operators_word_outlives_a_joining_that_begins_again() -> None:
    syncing = Syncing(MANUAL)
    syncing.begun()
    syncing.say(Word.FETCH)
    syncing.ended(synchronised=False)
    syncing.begun()
    assert syncing.may_fetch
    syncing.ended(synchronised=True)
    assert not syncing.may_fetch


def test_bytes_are_spread_evenly_and_idle_time_is_not_made_up() -> None:
    pace = Pace()
    assert pace.pause_s(500, None, now=0.0) == 0.0
    assert pace.pause_s(500, 1000, now=0.0) == pytest.approx(0.5)
    # It came back too early, because a stop had woken it.
    assert pace.pause_s(500, 1000, now=0.1) == pytest.approx(0.9)
    assert pace.pause_s(500, 1000, now=100.0) == pytest.approx(0.5)


def test_a_call_brings_no_more_than_the_rate_allows_in_its_time() -> None:
    assert Syncing(SyncSettings()).call_bytes_max == FETCH_BYTES_MAX
    assert Syncing(SyncSettings(rate_bytes_max=10_000)).call_bytes_max == 5_000
    assert Syncing(SyncSettings(rate_bytes_max=1)).call_bytes_max == 1
    assert Syncing(SyncSettings(rate_bytes_max=1 << 40)).call_bytes_max == FETCH_BYTES_MAX


def test_a_rate_slows_the_fetch_and_the_end_of_the_joining_does_not_wait() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        syncing = Syncing(SyncSettings(rate_bytes_max=20_000))
        syncing.begun()

        async def answers() -> AsyncIterator[Fetched]:
            yield 0, Block.of([bytes(2_000)]), False

        began = loop.time()
        for _ in range(2):
            async for _answer in syncing.paced(answers()):
                pass
        assert 0.2 <= loop.time() - began < leeway(2.0)
        info = syncing.info(1)
        assert info is not None
        bytes_fetched = 2 * len(Block.of([bytes(2_000)]).data)
        assert (info.messages_fetched, info.bytes_fetched) == (2, bytes_fetched)
        syncing.configure(SyncSettings(rate_bytes_max=1))
        began = loop.time()
        loop.call_later(0.01, lambda: syncing.ended(synchronised=False))
        async for _answer in syncing.paced(answers()):
            pass
        assert loop.time() - began < leeway(2.0)

    run(work())
