"""The connections that clients hold at this node; see `model.connections`.

A door opens one when its client asks for it (gRPC: a `Connect` stream; another protocol: with its
own connection), and closes it when the client has gone. What ends with a connection is decided in
`orphans`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count

from ringmq_gm import MemberId
from ringmq_node.model.connections import SECRET_BYTES, Owner, connection_id, owner_of
from ringmq_node.model.reasons import BrokerError, Reason

# Each costs its client's stream.
CONNECTIONS_MAX = 100_000


class ClientConnection:
    """`id` is the client's secret."""

    def __init__(self, connection: str) -> None:
        self.id = connection
        self.owner = owner_of(connection)


class Connections:
    """See the module. `me` is this life of the node."""

    def __init__(self, me: MemberId, secret: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._me = me
        self._secret = secret
        self._numbers = count(1)
        self._open: dict[Owner, ClientConnection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> ClientConnection:
        """Raises `BrokerError` if there are too many."""
        if len(self._open) >= CONNECTIONS_MAX:
            raise BrokerError(
                Reason.LIMIT_EXCEEDED,
                f"node {self._me.node!r} has {CONNECTIONS_MAX} connections",
                limit="connections",
            )
        me = self._me
        text = connection_id(
            me.node, me.incarnation, next(self._numbers), self._secret(SECRET_BYTES)
        )
        connection = ClientConnection(text)
        self._open[connection.owner] = connection
        return connection

    def close(self, connection: ClientConnection) -> None:
        """From now on its queues are orphans. Idempotent."""
        self._open.pop(connection.owner, None)

    def is_over(self, owner: Owner) -> bool:
        """Whether it was, or would have been, a connection at this life of this node, and is not
        open. False of any other home: this node can't tell."""
        me = self._me
        return (owner.node, owner.incarnation) == (me.node, me.incarnation) and (
            owner not in self._open
        )
