"""Making another replica the master: by a hand-over, or, where nothing else helps, with a loss.

A hand-over loses nothing, and is carried out by the master. A queue without a master gets one by
itself as soon as enough replicas that have everything are up. If these are gone for good, an
operator has to name the replica to go on with. `MESSAGES_MAY_BE_LOST` tells him what each replica
has; with an `Acceptance` the call goes to the node that he names, whose ring member decides
(`ringmq_gm.core.changes`) whether a loss is really needed.

This module's view of the replicas is for the operator's eyes. It isn't what makes the call safe.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from ringmq_gm import (
    LossOutcome,
    LossRefusedError,
    MemberId,
    PromotionError,
    PromotionOutcome,
    RingClosedError,
    View,
)
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.locating import Locator
from ringmq_node.broker.peers import Acceptance, Peers, Promoted
from ringmq_node.model.info import QueueInfo, ReplicaInfo
from ringmq_node.model.policies import ForcedPromotion, Wanted
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.replica.description import losses_of

# An answer about the replicas must not wait for a node that hangs.
REPLICA_DEADLINE_S = 2.0
OPERATOR_BYTES_MAX = 128

PROMOTION_REASONS = {
    PromotionOutcome.NOT_A_MEMBER: Reason.NOT_A_MEMBER,
    PromotionOutcome.NOT_SYNCHRONISED: Reason.NOT_SYNCHRONISED,
    PromotionOutcome.NOT_MASTER: Reason.NOT_MASTER,
}
# All others are about the moment: the next try finds a master, or gets another answer.
LOSS_REASONS = {
    LossOutcome.LONGER_LOG: Reason.MESSAGES_MAY_BE_LOST,
    LossOutcome.UNKNOWN: Reason.OUTCOME_UNKNOWN,
    LossOutcome.RING_DELETED: Reason.QUEUE_NOT_FOUND,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """One replica of a queue without a master, as its node answers.

    `standing`: "synchronised" or "eligible", with everything that was confirmed on the disk of
    `life`; or "behind". The rest is that of the node's present life; `is_up` False: it is down, or
    gives no answer, and the rest is not known.
    """

    node: str
    standing: str
    life: str
    is_up: bool
    log_is_whole: bool = False
    log_epoch: int = 0
    last_number: int = 0
    stable: int = 0
    messages: int = 0
    messages_missing: int = 0
    next_position: int = 0

    @property
    def has_everything(self) -> bool:
        return self.standing != "behind" and self.is_up and self.log_is_whole

    def __str__(self) -> str:
        if not self.is_up:
            return f"{self.node} ({self.standing}): no answer"
        if not self.log_is_whole:
            log = f"its log is not whole, and ends with op {self.last_number}"
        else:
            log = f"its log ends with op {self.last_number} of epoch {self.log_epoch}"
        return (
            f"{self.node} ({self.standing}): {log}, {self.messages} messages"
            + (f" ({self.messages_missing} without bodies)" if self.messages_missing else "")
            + f", next position {self.next_position}"
        )


class Promoting:
    """See the module."""

    def __init__(
        self, catalogue: QueueCatalogue, cluster: Cluster, locator: Locator, peers: Peers
    ) -> None:
        self._catalogue = catalogue
        self._cluster = cluster
        self._locator = locator
        self._peers = peers

    async def promote(
        self,
        queue: str,
        node: str,
        acceptance: Acceptance,
        *,
        forwarded: bool,
        deadline_s: float,
        wait_serving: Callable[[str], Awaitable[QueueInfo]],
    ) -> Promoted:
        """`wait_serving` returns when the queue's master serves. Raises `BrokerError`."""
        _check_operator(acceptance.operator)
        try:
            address = await self._locator.route(queue, forwarded=forwarded)
        except BrokerError as error:
            if error.reason is not Reason.NO_MASTER:
                raise
            return await self._without_master(
                queue, node, acceptance, error, forwarded, deadline_s, wait_serving
            )
        if address:
            return await self._peers.promote(
                address, queue, node, acceptance, deadline_s=deadline_s
            )
        began = time.monotonic()
        async with asyncio.timeout(deadline_s):
            await self._hand_over(queue, node)
            await wait_serving(queue)
        return self._promoted(queue, self._cluster.me.node, began)

    def _promoted(self, queue: str, old_master: str, began: float) -> Promoted:
        location = self._locator.locate(queue)
        return Promoted(
            old_master=old_master,
            new_master=location.node,
            epoch=location.epoch,
            took_ms=round((time.monotonic() - began) * 1000),
        )

    # --- by a hand-over ---

    async def _hand_over(self, queue: str, node: str) -> None:
        replica = self._locator.replica_of(queue)
        target = next((m.id for m in replica.view.members if m.id.node == node), None)
        if target is None:
            raise _no_replica(queue, node)
        try:
            await replica.ring.promote(target)
        except PromotionError as error:
            if error.outcome is PromotionOutcome.ALREADY_MASTER:
                return  # As asked: the answer to an earlier call may have been lost.
            raise BrokerError(
                PROMOTION_REASONS.get(error.outcome, Reason.DRAINING),
                f"queue {queue!r}: {node!r} was not promoted: {error.outcome.value}",
                queue=queue,
                node=node,
            ) from error
        except RingClosedError as error:
            raise BrokerError(Reason.DRAINING, str(error), queue=queue) from error

    # --- with a loss ---

    async def _without_master(
        self,
        queue: str,
        node: str,
        acceptance: Acceptance,
        no_master: BrokerError,
        forwarded: bool,
        deadline_s: float,
        wait_serving: Callable[[str], Awaitable[QueueInfo]],
    ) -> Promoted:
        view = self._locator.view_of(queue)
        if node not in self._catalogue.record_of(queue).nodes:
            raise _no_replica(queue, node)
        if any(map(self._cluster.is_alive, view.synced)):
            raise no_master  # That member takes over, or waits for its lease to run out.
        if not acceptance.is_given:
            await self._refuse(queue, node, view)
        if node != self._cluster.me.node:
            if forwarded:
                raise no_master
            address = self._cluster.address_of_node(node)
            return await self._peers.promote(
                address, queue, node, acceptance, deadline_s=deadline_s
            )
        began = time.monotonic()
        async with asyncio.timeout(deadline_s):
            await self._accept_loss(queue, node, acceptance.operator, view)
            await wait_serving(queue)
        loss = losses_of(self._locator.view_of(queue))[-1]
        promoted = self._promoted(queue, view.master.node, began)
        return Promoted(
            promoted.old_master, promoted.new_master, promoted.epoch, promoted.took_ms, loss
        )

    async def _accept_loss(self, queue: str, node: str, operator: str, view: View) -> None:
        replica = self._locator.replica_of(queue)
        _check_allowed(queue, replica.wanted)
        try:
            await replica.losses.accept(operator, at_ms=round(time.time() * 1000))
        except LossRefusedError as error:
            if error.outcome is LossOutcome.LONGER_LOG:
                await self._refuse(queue, node, view)
            raise BrokerError(
                LOSS_REASONS.get(error.outcome, Reason.NO_MASTER),
                f"queue {queue!r} was not begun again with {node!r}: {error.outcome.value}",
                queue=queue,
                node=node,
            ) from error
        except RingClosedError as error:
            raise BrokerError(Reason.DRAINING, str(error), queue=queue) from error

    async def _refuse(self, queue: str, node: str, view: View) -> None:
        """Says what is known of each replica, and why `node` isn't simply made the master."""
        standings = await self.standings(queue, view)
        wholes = sum(each.has_everything for each in standings)
        candidates = [each for each in standings if each.standing != "behind"]
        if wholes >= view.min_insync or (wholes and all(each.is_up for each in candidates)):
            raise BrokerError(
                Reason.NO_MASTER,
                f"queue {queue!r} begins again by itself, without a loss",
                queue=queue,
            )
        named = next(each for each in standings if each.node == node)
        if named.has_everything:
            outlook = (
                f"{node!r} may have everything that was confirmed, if its disk was not cut short; "
                f"the queue waits for {view.min_insync} such replicas"
            )
        elif named.is_up:
            missing = named.messages_missing
            lacked = f", and {missing} messages before it, whose bodies it lacks" if missing else ""
            outlook = (
                f"with {node!r}, whatever was confirmed beyond op {named.last_number} of epoch "
                f"{named.log_epoch} would be lost{lacked}"
            )
            outlook += _warning([each.node for each in candidates if not each.is_up])
        else:
            outlook = f"{node!r} does not answer, and can't be made master"
        raise BrokerError(
            Reason.MESSAGES_MAY_BE_LOST,
            f"queue {queue!r} has no master, and too few replicas that have everything: {outlook}. "
            f"Epoch {view.epoch}, min_insync {view.min_insync}: " + "; ".join(map(str, standings)),
            queue=queue,
            node=node,
            epoch=view.epoch,
            min_insync=view.min_insync,
            replicas=json.dumps([asdict(each) for each in standings], separators=(",", ":")),
        )

    async def standings(self, queue: str, view: View) -> list[Standing]:
        """What each node that should have a replica says of it."""
        lives = {member_id.node: member_id for member_id in view.candidates}
        nodes = dict.fromkeys([*lives, *self._catalogue.record_of(queue).nodes])
        found = await asyncio.gather(*(self._replica(queue, node) for node in nodes))
        return [
            _standing(view, node, lives.get(node), info)
            for node, info in zip(nodes, found, strict=True)
        ]

    async def _replica(self, queue: str, node: str) -> ReplicaInfo | None:
        try:
            address = self._cluster.address_of_node(node)
            return await self._peers.replica_info(address, queue, deadline_s=REPLICA_DEADLINE_S)
        except BrokerError:
            # Down, or it hangs, or it has not opened its replica: there is no answer to show.
            return None


def _standing(view: View, node: str, life: MemberId | None, info: ReplicaInfo | None) -> Standing:
    if life is None:
        standing = "behind"
    else:
        standing = "synchronised" if life in view.synced else "eligible"
    if info is None:
        return Standing(node, standing, "" if life is None else str(life), is_up=False)
    return Standing(
        node,
        standing,
        "" if life is None else str(life),
        is_up=True,
        log_is_whole=info.log_is_whole,
        log_epoch=info.log_epoch,
        last_number=info.last_number,
        stable=info.stable,
        messages=info.messages,
        messages_missing=info.messages_missing,
        next_position=info.next_position,
    )


def _warning(unheard: list[str]) -> str:
    """What a call with an `Acceptance` can't find out about nodes that had everything."""
    if not unheard:
        return ""
    return (
        f". No answer from {', '.join(unheard)}: a node that still runs, cut off, goes on "
        "confirming until it hears of the new master, and that would be lost, too: stop it first"
    )


def _check_allowed(queue: str, wanted: Wanted) -> None:
    """Raises `BrokerError` if a policy of the queue refuses any loss."""
    if wanted.forced_promotion is ForcedPromotion.REFUSED:
        names = ", ".join(name for name in (wanted.policy, wanted.operator_policy) if name)
        raise BrokerError(
            Reason.FORBIDDEN_BY_POLICY,
            f"queue {queue!r}: its policies ({names}) refuse to go on with a loss",
            queue=queue,
            policy=names,
        )


def _check_operator(operator: str) -> None:
    size = len(operator.encode())
    if size > OPERATOR_BYTES_MAX or not operator.isprintable():
        raise bad_request(
            f"an operator's name has at most {OPERATOR_BYTES_MAX} bytes and no control characters; "
            f"this one has {size} bytes",
            field="operator",
        )


def _no_replica(queue: str, node: str) -> BrokerError:
    return BrokerError(
        Reason.NOT_A_MEMBER,
        f"queue {queue!r} has no replica on node {node!r}",
        queue=queue,
        node=node,
    )
