"""Clients of a run end when it does, also when a cancellation passes them by."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chaos import load as loads
from chaos.load import QUEUES, Load
from history.records import History
from loops import run


class PlayedClient:
    async def close(self) -> None:
        pass


async def fails_when_cancelled(*_: Any) -> None:
    """As a task group does whose task fails in that moment."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        return


def test_a_load_ends_though_its_streams_miss_the_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads._Stubborn, "run", fails_when_cancelled)
    monkeypatch.setattr(Load, "_consume_once", fails_when_cancelled)
    played: Any = PlayedClient()

    async def main() -> None:
        queue, kind = next(iter(QUEUES.items()))
        with History(tmp_path / "history.jsonl") as history:
            load = Load({"a": "nowhere"}, history)
            load._client = played
            load._start(load._publishers, load._publish_stubbornly(queue, "a"))
            load._start(load._tasks, load._consume(queue, kind))
            await asyncio.sleep(0)
            async with asyncio.timeout(20.0):
                await load.__aexit__()

    run(main())
