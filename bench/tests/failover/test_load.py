from __future__ import annotations

import time

from bench.failover.load import Confirms, Load, body_of, number_of
from loops import run
from waiting import until


class FakeSender:
    """Confirms what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.closed = False

    async def open(self, queue: str, node: str, on_confirms: Confirms) -> None:
        self.confirm = on_confirms

    def send(self, numbers: range, size_bytes: int) -> None:
        self.sent += numbers

    async def close(self) -> None:
        self.closed = True


def load_over(sender: FakeSender) -> Load:
    return Load(sender, "q", "a", first=100, rate_per_s=1000, window=30, size_bytes=64)


def test_a_body_has_its_number_and_its_size() -> None:
    body = body_of(2**40 + 7, 100)
    assert (number_of(body), len(body)) == (2**40 + 7, 100)


def test_without_confirms_no_more_than_a_window_is_sent() -> None:
    async def scenario() -> None:
        sender = FakeSender()
        async with load_over(sender) as load:
            await until(lambda: len(sender.sent) == 30)
            assert not await load.serves(within_s=0.05)
            assert sender.sent == [*range(100, 130)]
            # Room for one burst, and no more: what couldn't be sent isn't made up for.
            sender.confirm(range(100, 110))
            await until(lambda: len(sender.sent) == 40)
            assert not await load.serves(within_s=0.05)
            assert len(sender.sent) == 40
        assert sender.closed
        assert load.confirmed == {*range(100, 110)}

    run(scenario())


def test_only_a_message_handed_over_after_the_fault_shows_service() -> None:
    async def scenario() -> None:
        sender = FakeSender()
        async with load_over(sender) as load:
            await until(lambda: len(sender.sent) == 30)
            fault_at = time.monotonic()
            sender.confirm(range(100, 130))
            assert load.served_at < fault_at
            await until(lambda: len(sender.sent) == 60)
            sender.confirm(range(130, 131))
            assert load.served_at > fault_at

    run(scenario())


def test_a_second_confirm_of_a_message_changes_nothing() -> None:
    async def scenario() -> None:
        sender = FakeSender()
        async with load_over(sender) as load:
            await until(lambda: len(sender.sent) == 30)
            sender.confirm([100])
            sender.confirm([100])
            await load.settle(within_s=0.05)
        assert load.confirmed == {100}

    run(scenario())
