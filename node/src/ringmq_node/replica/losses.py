"""A ring that is begun again from this replica's log, though it may lack confirmed messages.

An operator has decided that. The ring is told where the log ends, and the view records it: from
then on until the ring has answered, and for as long as the decision may take effect, the log keeps
that end (`ringmq_gm.core.losses` says why). The ring brings no op in that time, and no state may be
installed: a catching up waits in `wait_none_open`. Bodies may come; they change no end.
"""

from __future__ import annotations

import logging
import weakref
from typing import Protocol

from ringmq_base.notifier import Notifier
from ringmq_gm import LossAccepted, LossOutcome, LossRefusedError, Ring, View
from ringmq_node.storage import QueueStore

logger = logging.getLogger(__name__)

# A log that has grown again after so many syncs isn't left over: its ring takes ops.
SYNCS_MAX = 10


class LosingReplica(Protocol):
    """The replica, as this module uses it."""

    @property
    def queue_name(self) -> str: ...
    @property
    def store(self) -> QueueStore: ...
    @property
    def ring(self) -> Ring: ...
    @property
    def view(self) -> View: ...
    async def settle(self) -> None:
        """Returns when no op that was delivered waits to be applied, and all is on disk."""
        ...


class AcceptedLosses:
    """Of one replica."""

    __slots__ = ("_asked", "_changed", "_replica")

    def __init__(self, replica: LosingReplica) -> None:
        # The replica has this. A cycle would keep thousands of them in memory until a collection.
        self._replica: LosingReplica = weakref.proxy(replica)
        # How many decisions wait for the ring's answer.
        self._asked = 0
        self._changed = Notifier()

    async def accept(self, operator: str, *, at_ms: int) -> None:
        """Begins the ring again with what is here. Raises `LossRefusedError`, `RingClosedError`."""
        replica = self._replica
        self._asked += 1
        try:
            await self._settle()
            state = replica.store.state
            await replica.ring.accept_loss(
                LossAccepted(state.epoch, state.last_number, state.next_position, operator, at_ms)
            )
        finally:
            self._asked -= 1
            self.ended()
        logger.error(
            "queue %s: %s has accepted that confirmed messages may be lost: the ring goes on after "
            "op %d of epoch %d, with position %d. It was begun again without %s: any of these that "
            "still runs goes on confirming until it hears of this",
            replica.queue_name,
            operator,
            state.last_number,
            state.epoch,
            state.next_position,
            ", ".join(map(str, replica.view.losses[-1].overruled)),
        )

    async def _settle(self) -> None:
        """Returns when the log has one end, in memory and on disk.

        The ring takes it for written from the moment that the view says so.
        """
        replica = self._replica
        for _ in range(SYNCS_MAX):
            await replica.settle()
            if replica.store.durable_number == replica.store.state.last_number:
                return
        raise LossRefusedError(replica.queue_name, replica.ring.me, LossOutcome.MEMBERS_LIVE)

    def ended(self) -> None:
        """A decision has been answered, or the view has changed."""
        self._changed.notify()

    async def wait_none_open(self) -> None:
        """Returns when no decision for the log as it is may take effect."""
        while self._asked or self._replica.ring.loss_is_open:
            await self._changed.wait()
