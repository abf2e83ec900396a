"""Conditional deletions of a queue whose outcome isn't known (`broker.deleting`): of one replica.

While there is one, the queue takes no publishes and no consumers. It outlasts a mastership that
ends for want of contact: the commit may still be on its way, and in the same view this replica
takes over again. It ends when another member may be master. That takes another view, and the commit
is guarded with the revision of this one.
"""

from __future__ import annotations


class DeletionHold:
    """One deletion; compared by identity."""

    __slots__ = ()


class DeletionHolds:
    """See the module."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[DeletionHold] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def __contains__(self, hold: DeletionHold) -> bool:
        """Whether the queue has been held since this one was begun."""
        return hold in self._held

    def begin(self) -> DeletionHold:
        """The condition of a deletion has been checked: from now on the queue has to stay as it
        is."""
        hold = DeletionHold()
        self._held.append(hold)
        return hold

    def end(self, hold: DeletionHold) -> None:
        """This deletion won't take effect any more."""
        if hold in self._held:
            self._held.remove(hold)

    def clear(self) -> None:
        """This replica isn't its ring's master any more: no deletion can take effect."""
        self._held.clear()
