"""A relayed stream ends when its master is another one, also if the old one is cut off."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from loops import run

from ringmq_node.doors.grpc import relay
from ringmq_node.doors.grpc.relay import relay_stream
from ringmq_node.model.reasons import BrokerError, Reason

ADDRESS = "10.0.0.1:7800"


class PlayedMaster:
    """The channels to it, the channel and the call in one. It answers what is put into `answers`;
    None ends the stream."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[list[bytes] | None] = asyncio.Queue()
        self.cancelled = False
        self.metadata: dict[str, str] = {}

    def to(self, address: str) -> PlayedMaster:
        assert address == ADDRESS
        return self

    async def stream(self, method: str, *, metadata: Any) -> PlayedMaster:
        self.metadata = dict(metadata)
        return self

    async def write(self, message: bytes) -> None:
        pass

    async def read_batch(self) -> list[bytes] | None:
        return await self.answers.get()

    def cancel(self) -> None:
        self.cancelled = True


class PlayedClient:
    """It sends nothing more, and keeps what it gets."""

    call = SimpleNamespace(peer="ipv4:127.0.0.1:7")

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.heard = asyncio.Event()

    async def read_batch(self) -> list[bytes]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def write_batch(self, batch: list[bytes]) -> None:
        self.got += batch
        self.heard.set()


async def relayed(master: PlayedMaster, client: PlayedClient, moved: asyncio.Event) -> None:
    played_channels: Any = master
    context: Any = client

    async def has_moved() -> None:
        await moved.wait()

    await relay_stream(played_channels, ADDRESS, "/x", b"open", context, has_moved())


def test_a_master_that_is_cut_off_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MOVED_GRACE_S", 0.05)

    async def main() -> None:
        master, client, moved = PlayedMaster(), PlayedClient(), asyncio.Event()
        relaying = asyncio.create_task(relayed(master, client, moved))
        master.answers.put_nowait([b"opened"])
        await client.heard.wait()
        assert master.metadata == {"ringmq-relayed": "1", "ringmq-relayed-peer": client.call.peer}
        assert not relaying.done()
        moved.set()
        with pytest.raises(BrokerError, match="cut off") as refused:
            await asyncio.wait_for(relaying, 30)
        assert refused.value.reason is Reason.NO_MASTER
        assert master.cancelled

    run(main())


def test_a_master_that_never_answered_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client came by a view that was out of date, and is to come again at once."""
    monkeypatch.setattr(relay, "MOVED_GRACE_S", 60.0)

    async def main() -> None:
        master, client, moved = PlayedMaster(), PlayedClient(), asyncio.Event()
        relaying = asyncio.create_task(relayed(master, client, moved))
        moved.set()
        with pytest.raises(BrokerError, match="cut off"):
            await asyncio.wait_for(relaying, 30)

    run(main())


def test_the_old_master_says_itself_what_has_become_of_the_messages() -> None:
    async def main() -> None:
        master, client, moved = PlayedMaster(), PlayedClient(), asyncio.Event()
        relaying = asyncio.create_task(relayed(master, client, moved))
        master.answers.put_nowait([b"opened"])
        await client.heard.wait()
        moved.set()
        master.answers.put_nowait([b"moved"])
        master.answers.put_nowait(None)
        await asyncio.wait_for(relaying, 30)
        assert client.got == [b"opened", b"moved"]

    run(main())


def test_a_stream_that_ends_first_waits_for_no_other_master() -> None:
    async def main() -> None:
        master, client, moved = PlayedMaster(), PlayedClient(), asyncio.Event()
        master.answers.put_nowait(None)
        await asyncio.wait_for(relayed(master, client, moved), 10)

    run(main())
