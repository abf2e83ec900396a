"""The other nodes, as a replica that catches up fetches from them (`replica.fetching.Sources`).

The source's side follows `doors.grpc.ring`: it answers while it is the master or a mirror, once it
has the op that is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ringmq_base.ranges import Range
from ringmq_gm import MemberId, Role
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.catchup import FETCH_BYTES_MAX
from ringmq_node.replica.fetching import Fetched, Lacking, SourceError
from ringmq_node.replica.reading import read_whole
from ringmq_node.storage import QueueStore
from ringsim.queues.store import GhostState

if TYPE_CHECKING:
    from ringsim.queues.process import Process

DEADLINE_S = 5.0
# One answer has at most so many messages: a fetch takes several, and is cut off in between.
ANSWER_MESSAGES_MAX = 3

T = TypeVar("T")
Serve = Callable[["Process"], Coroutine[Any, Any, T]]


class VirtualSources:
    """As the replica of `process` reaches the others."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def fetch_state(
        self, queue_id: str, source: MemberId, number_min: int
    ) -> ReplicatedState:
        async def serve(there: Process) -> ReplicatedState:
            _check_source(there)
            await there.replica.wait_number(number_min)
            return GhostState.of(there.store)

        return await self._ask(source, serve)

    async def fetch_messages(
        self,
        queue_id: str,
        source: MemberId,
        ranges: Sequence[Range],
        *,
        bytes_max: int = FETCH_BYTES_MAX,
    ) -> AsyncIterator[Fetched]:
        async def serve(there: Process) -> list[Fetched]:
            _check_source(there)
            return _messages_of(there, ranges)

        for answer in await self._ask(source, serve):
            yield answer

    async def _ask(self, source: MemberId, serve: Serve[T]) -> T:
        mine = self._process
        if source == mine.me:
            raise SourceError("this is the node itself")
        answer: asyncio.Future[T] = mine.loop.create_future()
        self._later(self._arrive, source, serve, answer)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await answer
        except TimeoutError:
            raise SourceError(f"{source} doesn't answer") from None

    def _later(self, call: Callable[..., None], *args: object) -> None:
        delay = self._world.scenario.latencies.fetch_s * self._world.rng.random()
        self._world.clock.after(delay, call, *args)

    def _arrive(self, source: MemberId, serve: Serve[T], answer: asyncio.Future[T]) -> None:
        machine = self._world.machines[source.node]
        there = machine.process
        reached = self._world.network.can_reach(self._process.machine.name, source.node)
        if there is None or there.me != source or not reached:
            self._end(answer, SourceError(f"{source} can't be reached"))
            return

        async def work() -> None:
            try:
                result = await serve(there)
            except SourceError as error:
                self._later(self._end, answer, error)
            else:
                self._later(self._answered, source, answer, result)

        there.run(lambda: there.spawn(work()))

    def _answered(self, source: MemberId, answer: asyncio.Future[T], result: T) -> None:
        """Answers that can't get through are lost."""
        if not self._world.network.can_reach(source.node, self._process.machine.name):
            self._end(answer, SourceError(f"{source} can't be reached"))
            return
        self._process.run(lambda: None if answer.done() else answer.set_result(result))

    def _end(self, answer: asyncio.Future[T], error: SourceError) -> None:
        self._process.run(lambda: None if answer.done() else answer.set_exception(error))


def _check_source(there: Process) -> None:
    if there.ring.role not in (Role.MASTER, Role.MIRROR):
        raise SourceError("no synchronised replica is here")


def _messages_of(there: Process, ranges: Sequence[Range]) -> list[Fetched]:
    store, answers, left = there.store, list[Fetched](), ANSWER_MESSAGES_MAX
    for first, last in ranges:
        while first <= last and left > 0:
            runs = read_whole(
                cast(QueueStore, store),
                first,
                last,
                bytes_max=FETCH_BYTES_MAX,
                messages_max=left,
                ahead=False,
            )
            if not runs:
                gaps = store.missing.intersection(first, last)
                if not gaps:
                    break
                answers.append(Lacking((gaps[0],)))
                first = gaps[0][1] + 1
            for run in runs:
                left -= run.block.count
                first = run.first_position + run.block.count
                answers.append((run.first_position, run.block, run.transient))
    return answers
