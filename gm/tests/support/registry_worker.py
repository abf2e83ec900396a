"""A process of its own at a registry, for tests that need several, or stop one.

registry_worker.py URL increment KEY TIMES   counts KEY up by compare-and-set
registry_worker.py URL hold KEY TTL_S        puts KEY with a session and prints "held";
                                             after a line on stdin prints as JSON whether
                                             it believes the session lost, and whether a
                                             commit is then refused
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from uuid import uuid4

from loops import run

from ringmq_gm.registry.base import (
    CommitUnknownError,
    Guard,
    KeyValue,
    Put,
    Registry,
    RegistryUnavailableError,
    SessionLostError,
)
from ringmq_gm.registry.url import open_registry


async def increment(registry: Registry, key: str, times: int) -> None:
    """Adds one, `times` times, however often others come first.

    How often this caller has done so stands beside the sum, written by the same commits. A disk may
    hang for longer than a commit may take: whether such a commit came about is read there.
    """
    own_key = f"{key}/by/{uuid4().hex}"
    done = 0
    while done < times:
        with suppress(RegistryUnavailableError, CommitUnknownError):
            own = await registry.get(own_key)
            done = _number(own)
            if done < times:
                sum_so_far = await registry.get(key)
                await registry.commit(
                    [_unchanged(key, sum_so_far), _unchanged(own_key, own)],
                    [
                        Put(key, b"%d" % (_number(sum_so_far) + 1)),
                        Put(own_key, b"%d" % (done + 1)),
                    ],
                )


def _number(entry: KeyValue | None) -> int:
    return int(entry.value) if entry else 0


def _unchanged(key: str, entry: KeyValue | None) -> Guard:
    return Guard(key, entry.revision if entry else 0)


async def hold(registry: Registry, key: str, ttl_s: float) -> None:
    session = await registry.session(ttl_s)
    await registry.commit([], [Put(key, b"mine", leased=True)], session=session)
    print("held", flush=True)
    # Blocks the loop: no renewal and no task runs before the first look at `lost`.
    sys.stdin.readline()
    lost = session.lost
    try:
        await registry.commit([], [Put(key, b"still mine", leased=True)], session=session)
        refused = False
    except SessionLostError:
        refused = True
    print(json.dumps({"lost": lost, "refused": refused}), flush=True)


async def main() -> None:
    url, what, key, amount = sys.argv[1:]
    registry = open_registry(url)
    if what == "increment":
        await increment(registry, key, int(amount))
    else:
        await hold(registry, key, float(amount))
    await registry.close()


if __name__ == "__main__":
    run(main())
