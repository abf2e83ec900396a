"""From a story with a cluster to a test: an event loop, a cluster, a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from loops import run
from waiting import leeway

from nemesis.cluster import Cluster

Story = Callable[[Cluster], Awaitable[None]]


def scenario(
    *, deadline_s: float, queue: str = "q", **settings: Any
) -> Callable[[Story], Callable[[Path], None]]:
    """The story gets a running cluster of three with `queue` declared (none, if empty)."""

    def made(story: Story) -> Callable[[Path], None]:
        async def told(folder: Path) -> None:
            async with Cluster(folder, **settings) as cluster, asyncio.timeout(leeway(deadline_s)):
                if queue:
                    await cluster.declare(queue)
                    await cluster.wait_synchronised(queue)
                await story(cluster)

        @pytest.mark.slow
        @pytest.mark.cluster
        def test(tmp_path: Path) -> None:
            run(told(tmp_path))

        test.__name__ = test.__qualname__ = story.__name__
        test.__doc__ = story.__doc__
        test.__module__ = story.__module__
        return test

    return made
