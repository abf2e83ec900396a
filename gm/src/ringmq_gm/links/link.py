"""The links to other nodes: one gRPC stream each way for all rings.

An `OutgoingLink` (outgoing.py) carries all frames from here to one node in its requests, and
gets credit and heartbeats back in the responses. It is dialled again whenever it breaks; each
time is a session with a number. Frames that waited in a session that broke are dropped: after
`LinkUp` the cores shake hands and send the missing ops again. Only Pong, ViewTold
and Gone wait for a link that is not open, as nobody sends such an answer a second time.

`IncomingLinks` (incoming.py) answers the calls of the other nodes. Of each node it listens to one
session, the newest of its newest life, and drops the frames that an older session still brings.
Otherwise an op of the old session could arrive behind the handshake of the new one, and be taken
twice.

Bounds. Bodies are sent while less than `window_bytes` are not yet credited, and small ones of each
ring a little beyond that (window.py); control and heartbeats always go (only the newest of each
kind and ring waits). The receiver gives credit once
its cores have taken the frames, a quarter of a window at a time, and with each heartbeat; none
while its application asks so (`Group.hold_credit`). With credit and heartbeats comes the
application's notice to its neighbours, one byte (`Group.set_notice`). A receiver holds one message,
or one frame that comes in parts, of at most `frame_bytes_max`.

A stream is a connection of its own, and either may come to a standstill alone:

1. the network between two nodes comes and goes, and each time that TCP sends again what got lost on
one connection, the way is cut, 2. TCP waits twice as long from time to time, 12.6 s after six of
them, 3. the other connection has lost nothing and brings heartbeats, so neither node is silent,
4. no op of the ring gets through.

So a connection is lost (`WireCall.give_up_after`) once what one end has sent was not acknowledged
for half the ring time-out, and is dialled anew. The kernels judge that: a busy process acknowledges
too. Half of it, because several connections of a ring may come to a standstill one behind the
other. The dial may take the other half before the node is down: there was no sign that it isn't
there.

Frames are taken in the turn of the event loop that has read them. Those that they produce, on any
ring, go out together in the next turn, as far as the stream takes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ringmq_gm.core.frames import Frame
from ringmq_gm.core.views import MemberId

METHOD = "/ringmq.v1.Ring/Link"


class LinkError(Exception):
    """A link can't be opened, or has broken. It is dialled again."""


class LinkOwner(Protocol):
    """The keeper of the links, as far as a link needs it."""

    @property
    def me(self) -> MemberId: ...

    @property
    def running(self) -> bool: ...

    def address_of(self, node: str) -> str | None:
        """The address of the node; None if it was never seen registered."""
        ...

    def known_incarnation(self, node: str) -> int:
        """The highest incarnation of the node that was seen; 0 if none was."""
        ...

    def saw(self, member_id: MemberId) -> None: ...

    def heard(self, node: str) -> None: ...

    def noticed(self, node: str, notice: int) -> None:
        """The node's application tells its neighbours this."""
        ...

    def link_opened(self, node: str) -> None: ...

    def link_broke(self, node: str, *, given_up: bool) -> None:
        """`given_up`: its connection brought nothing for `GroupOptions.unacknowledged_s`."""
        ...

    def dial_failed(self, node: str) -> None: ...

    def received(self, sender: MemberId, frames: Iterable[Frame]) -> None: ...
