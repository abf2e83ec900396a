"""What the owner of a ring implements: it applies the ops, and keeps them on its disk."""

from __future__ import annotations

from typing import Protocol

from ringmq_gm.core.events import Role
from ringmq_gm.core.views import MemberId, View
from ringmq_gm.errors import RingFailedError


class Application(Protocol):
    """The part that a ring's owner implements. Called on the event loop; none may block or await.

    Raising is fatal for this member: there is no op that one member may skip.
    """

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        """Apply this op, and begin to write it to disk (then: `Ring.persisted`).

        Called once for each number, in order, on every member alike.
        """
        ...

    def watermarks(self, received: int, persisted: int) -> None:
        """On the master only: the ops up to these numbers are held by (on the disk of) every
        synchronised member, and there are at least `min_insync` of these. Never falls while this
        member stays master."""
        ...

    def contact_changed(self, has_contact: bool) -> None:
        """On the master only. Without contact it hears too few members, and another one may have
        followed it: serve nobody. With contact again it is still the master. `role_changed` to
        master means contact as well."""
        ...

    def role_changed(self, role: Role, view: View) -> None:
        """Entered `view`. Called for each view, even if the role stays the same."""
        ...

    def start_catch_up(self, number: int, source: MemberId) -> None:
        """This member has joined: the ops after `number` will be delivered. Cut the log where it
        departs from that of `source` (the master at this time), fetch the missing ops up to
        `number`, then call `Ring.caught_up`."""
        ...

    def loss_ended(self) -> None:
        """`Ring.accept_loss` has been answered, whether its caller still waits or not. If
        `Ring.loss_is_open` is False, the log may change again."""
        ...

    def ring_deleted(self) -> None:
        """The ring is no more. The last call; the `Ring` is closed."""
        ...

    def ring_failed(self, failure: RingFailedError) -> None:
        """This member has failed: its core or this application has raised. The last call; the
        `Ring` is closed. Raising here is logged, and has no other effect."""
        ...
