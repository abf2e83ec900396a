"""A client's connection, as exclusive queues know it. Pure.

A *connection* is held at one node, its *home*, by a stream or a socket that the client keeps open.
It lives no longer than that, nor than its home's life. The client names it in its calls to any
node by an *id*, which its home has given it:

    <node>.<incarnation>.<number>.<secret>     128 random bits, as base64url

Whoever knows the id may use the connection's exclusive queues, so it is never shown, logged or
stored. A queue's record, which every operator can read, has the connection's `Owner` instead: a
hash in the place of the secret. From it every node can tell whose queue it is, and whether the
home's life is over.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from ringmq_node.model.reasons import bad_request

SECRET_BYTES = 16
CONNECTION_ID_BYTES_MAX = 255


class OwnerError(ValueError):
    """This text is no owner of a queue."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A connection without its secret. `number` is given out by the home's life."""

    node: str
    incarnation: int
    number: int
    key: str

    @property
    def name(self) -> str:
        """For people; not enough to use the connection."""
        return f"{self.node}.{self.incarnation}.{self.number}"

    def encode(self) -> str:
        return f"{self.name}.{self.key}"

    @classmethod
    def decode(cls, text: str) -> Owner:
        """Raises `OwnerError`."""
        node, *rest = text.rsplit(".", 3)
        if len(rest) != 3 or not node or not rest[2]:
            raise OwnerError(f"{text!r} is no owner of a queue")
        try:
            return cls(node, int(rest[0]), int(rest[1]), rest[2])
        except ValueError as error:
            raise OwnerError(f"{text!r} is no owner of a queue") from error


def owner_name(owner: str) -> str:
    """`Owner.name` of an encoded owner; empty if there is none, or it can't be read."""
    try:
        return Owner.decode(owner).name
    except OwnerError:
        return ""


def connection_id(node: str, incarnation: int, number: int, secret: bytes) -> str:
    """The id of a new connection. `secret`: `SECRET_BYTES` that nobody can guess."""
    assert len(secret) == SECRET_BYTES
    return f"{node}.{incarnation}.{number}.{base64url(secret)}"


def owner_of(connection: str) -> Owner:
    """The owner that this id stands for. Raises `BrokerError` if it is none."""
    if len(connection.encode(errors="replace")) <= CONNECTION_ID_BYTES_MAX:
        try:
            given = Owner.decode(connection)
        except OwnerError:
            pass
        else:
            key = hashlib.blake2b(connection.encode(), digest_size=16).hexdigest()
            return Owner(given.node, given.incarnation, given.number, key)
    raise bad_request("this is not the id of a connection", field="connection")


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
