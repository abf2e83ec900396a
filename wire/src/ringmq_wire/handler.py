"""The application's side of a call, and what stands in its place once the call has ended."""

from __future__ import annotations

from ringmq_wire.codes import Metadata, RpcStatus


class CallHandler:
    """The application's side of one call. The methods here do nothing."""

    def began(self, metadata: Metadata) -> None:
        """The answer has begun (client)."""

    def received(self, messages: list[bytes]) -> None:
        """Messages, in order. When this returns they count as consumed, unless the call's
        `credit_by_hand` is set."""

    def half_closed(self) -> None:
        """The client sends no more (server)."""

    def ended(self, status: RpcStatus) -> None:
        """The last callback: not called if this side has ended the call itself."""

    def pause_sending(self) -> None:
        """`send_bytes_high` bytes wait; beyond `send_bytes_max`, `send` raises."""

    def resume_sending(self) -> None:
        """Less than half of that waits."""


# Of calls that have ended: their handlers are told nothing more.
NOBODY = CallHandler()


class EndedCall:
    """The owner of all streams whose calls have ended, as far as `WireProtocol` asks it: an event
    may come behind the one whose handler has ended the call."""

    handler = NOBODY
    credit_by_hand = False

    def let_go(self) -> None:
        """There is nothing left."""


ENDED = EndedCall()
