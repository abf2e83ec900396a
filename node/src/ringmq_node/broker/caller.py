"""Who makes a call of the broker, and what he may use. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.broker.ownership import check_usable
from ringmq_node.model.records import QueueRecord
from ringmq_node.model.settings import CALL_DEADLINE_S


@dataclass(frozen=True, slots=True)
class Caller:
    """The origin of a call, as far as the broker has to know it."""

    deadline_s: float = CALL_DEADLINE_S
    # Another node has sent the call here, because this node was the master.
    forwarded: bool = False
    # The id of the client's connection, or empty. Of no meaning in a call that is forwarded.
    connection: str = ""

    def check_may_use(self, record: QueueRecord | None) -> None:
        """Raises `BrokerError` if the queue is another connection's. `record`: None of a queue
        that can't be exclusive. The node that has forwarded a call has checked its caller."""
        if record is not None and not self.forwarded:
            check_usable(record, self.connection)
