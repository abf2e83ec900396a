"""Vhosts, exchanges and bindings without asyncio: the calls of `ringmq.topology`, which wait."""

from __future__ import annotations

from ringmq.calls.loop_thread import OnLoop
from ringmq.calls.waiting_call import waiting
from ringmq.topology import TopologyCalls


class SyncTopology(OnLoop[TopologyCalls]):
    """Made by `SyncClient.topology`."""

    declare_exchange = waiting(TopologyCalls.declare_exchange)
    exchange = waiting(TopologyCalls.exchange)
    delete_exchange = waiting(TopologyCalls.delete_exchange)
    exchanges = waiting(TopologyCalls.exchanges)
    bind = waiting(TopologyCalls.bind)
    unbind = waiting(TopologyCalls.unbind)
    bindings = waiting(TopologyCalls.bindings)
    create_vhost = waiting(TopologyCalls.create_vhost)
    delete_vhost = waiting(TopologyCalls.delete_vhost)
    vhosts = waiting(TopologyCalls.vhosts)
    export_definitions = waiting(TopologyCalls.export_definitions)
    import_definitions = waiting(TopologyCalls.import_definitions)
