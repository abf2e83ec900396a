"""How members tell each other the views, so that one that is cut from the registry learns them.

A view that a member knows has been in the registry: it was read there, or its proposal was
answered with "won". The registry changes by compare-and-set on the epoch, so it never holds
another view of the same epoch. Told on, such a view is a fact like one that a late watch shows, and
the core takes it in the same way. A view that was merely proposed is never told, nor one whose
proposal ended UNKNOWN.

1. a, b and c; the master a is cut from the registry, 2. b dies, 3. c proposes (a, c), and the
registry takes it, 4. c tells a, a enters the view and greets c: the ring goes on. Without that, c
would refuse the frames of a's epoch, and a could confirm nothing until it reaches the registry.

It changes nothing about who may confirm. A master that has lost its lease and enters a view second
hand still needs the marks of all synchronised members in that epoch:

1. c tells a view 2 = (a, c), 2. before a has it, c proposes view 3 = (c), since a's lease has run
out and c has lost the link to it, 3. a enters view 2 as its master. It gets no marks from c, which
is in epoch 3; c answers its Hello with view 3, and a is outside.

Who tells whom:

* Whoever gets a Ping, a Pong or a frame of a ring with an older epoch answers with its own view.
* Whoever gets a Hello of an epoch that it doesn't know asks the sender, besides the registry.
* A mirror that nobody has greeted for `tell_s` tells its upstream neighbour (`Mirror.tick`). So a
  view comes up the ring to the master, and the handshakes come down.
* The lives that an accepted loss overrules are told at once, and with each new link, by whoever
  knows the view. They are the one case in which a master of an older view confirms by itself:
  nobody of the ring that follows has to take its frames (docs/ring.md, "Beginning with a loss").
"""

from __future__ import annotations

from collections.abc import Iterable

from ringmq_gm.core.events import Effect, Send
from ringmq_gm.core.frames import Hello, ViewTold
from ringmq_gm.core.views import MemberId, View


def told_if_older(ring: str, view: View | None, node: str, epoch: int) -> list[Effect]:
    """Tells `view` to a member at `node` that knows only `epoch`, if that is older."""
    if view is None or epoch >= view.epoch:
        return []
    return [Send(node, ViewTold(ring, view.epoch, view))]


def told_to_overruled(ring: str, view: View | None, lives: Iterable[MemberId]) -> list[Effect]:
    """Tells `view` to those of the lives that it has overruled: their ring may go on without
    knowing, and has no reason to ask."""
    if view is None:
        return []
    overruled = view.overruled
    return [
        Send(life.node, ViewTold(ring, view.epoch, view)) for life in lives if life in overruled
    ]


class EarlyHello:
    """The Hello of an epoch that this member hasn't heard of yet; the one of the highest epoch."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[MemberId, Hello] | None = None

    def keep(self, sender: MemberId, hello: Hello) -> None:
        """A Hello of an older epoch that comes later must not displace it."""
        if self._kept is None or hello.epoch >= self._kept[1].epoch:
            self._kept = (sender, hello)

    def take(self, view: View) -> tuple[MemberId, Hello] | None:
        """The Hello that came before this view, if any; those of older views are forgotten."""
        kept = self._kept
        if kept is None or kept[1].epoch > view.epoch:
            return None
        self._kept = None
        return kept if kept[1].epoch == view.epoch else None
