"""`queue verify`: the synchronised replicas of a queue compared, message by message, in use.

The node that takes the call asks each replica for hashes of some positions at a time, compares
(`replica.comparing`), and goes on with the next ones, up to the last position that the queue had
when it began. Only the hashes travel. The replicas read the bodies as for a consumer.

A view that changes meanwhile is no end of it: the same positions are asked for again, of the
members that are synchronised then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from ringmq_base.ranges import RangeSet, numbers_in
from ringmq_gm import MemberId
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.locating import Locator
from ringmq_node.model.info import Difference, VerifyInfo
from ringmq_node.model.reasons import BrokerError
from ringmq_node.replica.comparing import Digests, compare, rest_differs

DIFFERENCES_MAX = 20
# For so long a comparison waits for a ring that has no master, or whose members don't agree on the
# view yet.
RING_DEADLINE_S = 15.0
RETRY_S = 0.2
# Between two messages to the caller.
TELL_S = 0.25


class DigestSources(Protocol):
    async def digests(
        self, address: str, node: str, queue_id: str, first: int, last: int, *, number_min: int
    ) -> Digests:
        """What the replica at `address` has, as of op `number_min` or later. Raises
        `BrokerError`."""
        ...


@dataclass(slots=True)
class _Course:
    """One comparison that is under way."""

    total: int
    rate_bytes_max: int
    position: int = 0
    messages: int = 0
    bytes: int = 0
    nodes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    differences_total: int = 0
    differences: list[Difference] = field(default_factory=list)
    # Counts if all messages are equal: else the states differ by these.
    rest: Difference | None = None

    def info(self) -> VerifyInfo:
        return VerifyInfo(
            positions=self.position,
            positions_total=self.total,
            messages=self.messages,
            bytes=self.bytes,
            done=self.position >= self.total,
            nodes=self.nodes,
            left_out=self.left_out,
            differences_total=self.differences_total,
            differences=tuple(self.differences),
        )

    def found(self, differences: list[Difference]) -> None:
        # Two pairs of replicas may differ at one position: told once, by the first pair.
        by_position = {each.position: each for each in reversed(differences)}
        self.differences_total += len(by_position)
        for position in sorted(by_position):
            if len(self.differences) < DIFFERENCES_MAX:
                self.differences.append(by_position[position])

    def ended(self) -> None:
        if self.rest is not None and not self.differences_total:
            self.found([self.rest])


class Verifying:
    """See the module."""

    def __init__(self, cluster: Cluster, locator: Locator, sources: DigestSources) -> None:
        self._cluster = cluster
        self._locator = locator
        self._sources = sources

    async def verify(
        self, queue: str, queue_id: str, *, rate_bytes_max: int = 0
    ) -> AsyncIterator[VerifyInfo]:
        """Tells the progress now and then, and the result at last. Raises `BrokerError`."""
        loop = asyncio.get_running_loop()
        master = self._locator.master_of(queue)
        first = await self._ask(master, queue_id, 0, 0, number_min=0)
        course = _Course(first.next_position, rate_bytes_max)
        tell_at = loop.time() + TELL_S
        # Of a queue that never had a message the states are compared all the same.
        while course.position < course.total or not course.nodes:
            began, bytes_before = loop.time(), course.bytes
            await self._advance(queue, queue_id, course)
            if rate_bytes_max:
                due = began + (course.bytes - bytes_before) / rate_bytes_max
                await asyncio.sleep(max(0.0, due - loop.time()))
            if loop.time() >= tell_at and course.position < course.total:
                tell_at = loop.time() + TELL_S
                yield course.info()
        course.ended()
        yield course.info()

    async def _advance(self, queue: str, queue_id: str, course: _Course) -> None:
        """Compares the next positions, as soon as the ring's members agree on its view."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RING_DEADLINE_S
        while True:
            try:
                if await self._step(queue, queue_id, course):
                    return
            except BrokerError as error:
                if not error.retryable or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _step(self, queue: str, queue_id: str, course: _Course) -> bool:
        """False if the members answer in different views."""
        master = self._locator.master_of(queue)
        view = self._locator.view_of(queue)
        first, last = course.position, max(course.position, course.total - 1)
        one = await self._ask(master, queue_id, first, last, number_min=0)
        others = [member_id for member_id in view.synced if member_id != master]
        answers = await asyncio.gather(
            *(self._ask(each, queue_id, first, one.last, number_min=0) for each in others)
        )
        if {one.epoch, *(answer.epoch for answer in answers)} != {view.epoch}:
            return False
        # An answer of another replica may be shorter, as it may have more messages there.
        covered = min([one.last, *(answer.last for answer in answers)])
        found: list[Difference] = []
        for member_id, answer in zip(others, answers, strict=True):
            compared = compare(one, answer)
            course.rest = course.rest or rest_differs(one, answer)
            found += compared.differences
            if compared.unsettled:
                settled = await self._settle(
                    queue_id, (master, one), (member_id, answer), compared.unsettled
                )
                if settled is None:
                    return False
                found += settled[0]
                covered = min(covered, settled[1])
        course.nodes = (master.node, *(member_id.node for member_id in others))
        course.left_out = tuple(m.id.node for m in view.members if not m.synced)
        course.found([each for each in found if each.position <= covered])
        course.position = min(covered + 1, course.total)
        course.messages += numbers_in(one.live.intersection(first, covered))
        course.bytes += one.bytes_read
        return True

    async def _settle(
        self,
        queue_id: str,
        one: tuple[MemberId, Digests],
        other: tuple[MemberId, Digests],
        unsettled: RangeSet,
    ) -> tuple[list[Difference], int] | None:
        """Asks the one that is behind again: what differs, and the last position that it answers
        for. None if the view has changed."""
        behind = min(one, other, key=lambda each: each[1].number)
        ahead = other[1] if behind is one else one[1]
        again = await self._ask(
            behind[0],
            queue_id,
            behind[1].first,
            min(one[1].last, other[1].last),
            number_min=ahead.number,
        )
        if again.epoch != ahead.epoch:
            return None
        pair = (again, other[1]) if behind is one else (one[1], again)
        rest = RangeSet()
        for start, stop in unsettled:
            if start <= again.last:
                rest.add(start, min(stop, again.last))
        return compare(*pair, among=rest).differences, again.last

    async def _ask(
        self, member_id: MemberId, queue_id: str, first: int, last: int, *, number_min: int
    ) -> Digests:
        address = self._cluster.address_of(member_id)
        return await self._sources.digests(
            address, member_id.node, queue_id, first, last, number_min=number_min
        )
