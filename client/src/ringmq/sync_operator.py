"""What operators change, without asyncio: the calls of `ringmq.operator`, which wait."""

from __future__ import annotations

from ringmq.calls.loop_thread import OnLoop
from ringmq.calls.waiting_call import waiting
from ringmq.operator import Operator


class SyncOperator(OnLoop[Operator]):
    """Made by `SyncClient.operator`. `verify_queue` calls its `on_progress` in the clients' own
    thread, and it must not call this client."""

    set_policy = waiting(Operator.set_policy)
    delete_policy = waiting(Operator.delete_policy)
    policies = waiting(Operator.policies)
    connections = waiting(Operator.connections)
    consumers = waiting(Operator.consumers)
    verify_queue = waiting(Operator.verify_queue)
    drain = waiting(Operator.drain)
    revive = waiting(Operator.revive)
    forget = waiting(Operator.forget)
    rebalance = waiting(Operator.rebalance)
