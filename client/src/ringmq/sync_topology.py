"""Vhosts, exchanges and bindings without asyncio: the calls of `ringmq.topology`, which wait."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Concatenate, ParamSpec, TypeVar

from ringmq.calls.loop_thread import run_on_loop
from ringmq.topology import TopologyCalls

R = TypeVar("R")
P = ParamSpec("P")


def _waiting(
    call: Callable[Concatenate[TopologyCalls, P], Coroutine[object, object, R]],
) -> Callable[Concatenate[SyncTopology, P], R]:
    """The same call, which waits."""

    def waits(self: SyncTopology, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_on_loop(call(self.calls, *args, **kwargs))

    return functools.update_wrapper(waits, call)


class SyncTopology:
    """Made by `SyncClient.topology`."""

    def __init__(self, calls: TopologyCalls) -> None:
        self.calls = calls

    declare_exchange = _waiting(TopologyCalls.declare_exchange)
    exchange = _waiting(TopologyCalls.exchange)
    delete_exchange = _waiting(TopologyCalls.delete_exchange)
    exchanges = _waiting(TopologyCalls.exchanges)
    bind = _waiting(TopologyCalls.bind)
    unbind = _waiting(TopologyCalls.unbind)
    bindings = _waiting(TopologyCalls.bindings)
    create_vhost = _waiting(TopologyCalls.create_vhost)
    delete_vhost = _waiting(TopologyCalls.delete_vhost)
    vhosts = _waiting(TopologyCalls.vhosts)
    export_definitions = _waiting(TopologyCalls.export_definitions)
    import_definitions = _waiting(TopologyCalls.import_definitions)
