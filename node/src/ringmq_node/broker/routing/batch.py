"""A batch of a routed session, and those that wait behind one whose way is looked up. Pure.

An exchange or a queue may have been declared through another node a moment ago, and this node's
watch be behind: then the registry is asked, and the session's next batches must not overtake the
one that waits for the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ringmq_base.limits import MIB
from ringmq_base.values import value
from ringmq_node.broker.routing.stamp import KEY_BYTES_MAX, KEYS_MAX
from ringmq_node.model.fields import Headers
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.settings import BATCH_BYTES_MAX

# Batches that wait behind one that is looked up: the other unknown names in them are asked for by
# the same call.
HELD_MAX = 100
HELD_BYTES_MAX = MIB


@value
class RoutedBatch:
    """Messages with consecutive sequences and the same attributes.

    `properties`, encoded: none, one for all, or one for each. `headers`: the same of their headers,
    asked for only if the way depends on them. A message goes to each queue that one of its keys
    leads to, once. Consumers are told the `routing_keys`, of which there is at least one, and never
    the `hidden_keys`: they are AMQP's CC and BCC.
    """

    first_sequence: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    headers: Callable[[], Sequence[Headers]]
    # As its clients call it.
    exchange: str
    routing_keys: tuple[str, ...]
    hidden_keys: tuple[str, ...] = ()
    mandatory: bool = False
    transient: bool = False
    ttl_ms: int | None = None
    priority: int = 0
    # Internal names: these don't get it.
    except_queues: frozenset[str] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        """All that it is routed by."""
        return self.routing_keys + self.hidden_keys if self.hidden_keys else self.routing_keys

    @property
    def size_bytes(self) -> int:
        return size_of(self.bodies, self.properties, 0, len(self.bodies))


def check_keys(batch: RoutedBatch) -> None:
    """Raises `BrokerError`."""
    count = len(batch.routing_keys) + len(batch.hidden_keys)
    # A character has at most four bytes.
    if count == 1 and 4 * len(batch.routing_keys[0]) <= KEY_BYTES_MAX:
        return
    _check_key(batch.routing_keys[0], "routing_key")
    if count == 1:
        return
    if count > KEYS_MAX:
        raise bad_request(
            f"a message has at most {KEYS_MAX} routing keys, this one {count}", field="cc"
        )
    for key in batch.routing_keys[1:]:
        _check_key(key, "cc")
    for key in batch.hidden_keys:
        _check_key(key, "bcc")
    # Each of the properties gets them: a request of some kilobytes must not become gigabytes here.
    size = len(batch.properties) * sum(len(key.encode()) for key in batch.routing_keys[1:])
    if size > BATCH_BYTES_MAX:
        raise bad_request(
            f"further routing keys take {size} bytes in the properties of this batch, at most "
            f"{BATCH_BYTES_MAX}: publish fewer messages at once",
            field="cc",
        )


def _check_key(key: str, field: str) -> None:
    size = len(key.encode())
    if size > KEY_BYTES_MAX:
        raise bad_request(
            f"a routing key has at most {KEY_BYTES_MAX} bytes, this one {size}", field=field
        )


class HeldRoutedBatches:
    """True while there are any. The first of them is being looked up."""

    def __init__(self) -> None:
        self._batches: deque[RoutedBatch] = deque()
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def is_full(self) -> bool:
        return len(self._batches) >= HELD_MAX or self._size_bytes >= HELD_BYTES_MAX

    @property
    def first(self) -> RoutedBatch:
        return self._batches[0]

    def all(self) -> Sequence[RoutedBatch]:
        return self._batches

    def add(self, batch: RoutedBatch) -> None:
        self._batches.append(batch)
        self._size_bytes += batch.size_bytes

    def drop_first(self) -> None:
        self._size_bytes -= self._batches.popleft().size_bytes


def size_of(bodies: Sequence[bytes], properties: Sequence[bytes], start: int, stop: int) -> int:
    """Bytes of the bodies from `start` to `stop`, and of their properties."""
    size = sum(map(len, bodies[start:stop]))
    if len(properties) > 1:
        return size + sum(map(len, properties[start:stop]))
    return size + (len(properties[0]) * (stop - start) if properties else 0)
