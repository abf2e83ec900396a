"""Whose an exclusive queue is, and the names that the cluster gives. Pure.

An exclusive queue serves the connection that declared it: others may publish to it, which is how
replies come in, and do nothing else. The check is made by the node that a client talks to; it is
not made again where another node has forwarded the call.
"""

from __future__ import annotations

import hashlib

from ringmq_node.model.connections import base64url, owner_of
from ringmq_node.model.names import join_name, shown, split_name
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import QueueRecord, check_queue_name

RESERVED_PREFIX = "amq."
GENERATED_PREFIX = "amq.gen-"
NAME_TOKEN_BYTES_MAX = 64


def check_usable(record: QueueRecord, connection: str) -> None:
    """Raises `BrokerError` if the queue is another connection's. `connection` is the caller's id,
    or empty."""
    if record.owner:
        check_owner(record, owner_of(connection).encode() if connection else "")


def check_owner(record: QueueRecord, owner: str) -> None:
    """Raises `BrokerError` if the queue is another connection's than `owner`'s."""
    if record.owner and record.owner != owner:
        raise BrokerError(
            Reason.QUEUE_LOCKED,
            f"queue {shown(record.name)!r} is exclusive to another connection",
            queue=record.name,
        )


def check_not_reserved(name: str) -> None:
    """Raises `BrokerError` for a name that no client may declare."""
    if name.startswith(RESERVED_PREFIX):
        raise BrokerError(
            Reason.ACCESS_REFUSED,
            f"name {name!r}: those that begin with {RESERVED_PREFIX!r} are the cluster's; leave a "
            "queue's name empty to be given one",
            queue=name,
            field="queue",
        )


def named(queue: str, token: bytes, *, restores: bool = False) -> str:
    """The internal name under which `queue`, an internal name too, is declared. Raises
    `BrokerError` for one that a client can't declare.

    `restores`: the declaration comes from definitions. They may name a queue whose name a cluster
    has given, so that a copy of the queue has that name too, and its bindings find it.
    """
    vhost, name = split_name(queue)
    if not name:
        return join_name(vhost, generated_name(token))
    check_queue_name(queue)
    # Not every reserved name: "amq.rabbitmq.reply-to" is an address, and no queue may stand there.
    if not (restores and name.startswith(GENERATED_PREFIX)):
        check_not_reserved(name)
    return queue


def generated_name(token: bytes) -> str:
    """The name for a queue that is declared without one. `token` is the declaration's: if it is
    repeated, because an answer was lost, it means the same queue."""
    if not 1 <= len(token) <= NAME_TOKEN_BYTES_MAX:
        raise bad_request(
            f"a name token has 1 to {NAME_TOKEN_BYTES_MAX} bytes, this one {len(token)}",
            field="name_token",
        )
    # Not the token itself: a client could choose the name then.
    return GENERATED_PREFIX + base64url(hashlib.blake2b(token, digest_size=16).digest())
