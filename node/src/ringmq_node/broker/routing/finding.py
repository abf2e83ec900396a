"""The queues of a batch's messages, as far as this node knows; and names to ask the registry for.

Pure but for the node's memory of names that it has asked the registry for (`unknown`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from ringmq_base.values import value
from ringmq_node.broker.routing.batch import RoutedBatch, size_of
from ringmq_node.broker.routing.core import TargetRun
from ringmq_node.model.deaths import ClosesCycleError
from ringmq_node.model.fields import Headers
from ringmq_node.model.names import check_name, has_control, join_name, shown
from ringmq_node.model.reasons import BrokerError, Reason


class Routes(Protocol):
    """The router (`broker.topology.router`), as sessions use it."""

    def check_publish(self, exchange: str) -> None: ...
    def looks_at_headers(self, exchange: str) -> bool: ...
    def route(
        self,
        exchange: str,
        routing_keys: Sequence[str],
        headers: Headers | None = None,
    ) -> tuple[str, ...]: ...


class RoutingNode(Protocol):
    @property
    def routes(self) -> Routes: ...
    def may_be_exchange(self, exchange: str) -> bool:
        """Whether the registry may know of an exchange that this node hasn't heard of."""
        ...

    def may_be_queue(self, queue: str) -> bool:
        """The same of a queue."""
        ...


@value
class UnknownNames:
    """Internal names that this node hasn't heard of, and the registry may know."""

    exchanges: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class TargetFinder:
    """Of one session. All methods raise `BrokerError` if there is no such exchange, clients may
    not publish to it, or its name can't be one; `ClosesCycleError` if only queues that must not get
    a batch would."""

    def __init__(self, node: RoutingNode, vhost: str, *, is_internal: bool) -> None:
        """`is_internal`: the node itself publishes, also to internal exchanges."""
        self._node = node
        self._vhost = vhost
        self._is_internal = is_internal
        # The exchange of the last batch, as its client calls it, and its internal name.
        self._shown = ""
        self._exchange = join_name(vhost, "")

    def find(self, batch: RoutedBatch) -> list[TargetRun] | UnknownNames:
        """To say that there is no queue or exchange which was declared through another node a
        moment ago would lose its messages."""
        exchange = self._exchange
        if batch.exchange != self._shown:
            exchange = self._internal_name(batch.exchange)
        try:
            targets = self._targets(batch, exchange)
        except BrokerError as error:
            if error.reason is Reason.EXCHANGE_NOT_FOUND and self._node.may_be_exchange(exchange):
                return UnknownNames(exchanges=(exchange,))
            raise
        # Of other exchanges a binding tells, which the watch brings a moment later.
        if batch.exchange:
            self._check_cycle(batch, exchange, targets)
            return targets
        keys = batch.keys
        if len(keys) == 1 and (targets[0].queues or any(run.queues for run in targets)):
            return targets
        lost = (key for key in keys if not self._node.routes.route(exchange, (key,)))
        unknown = (exchange + key for key in lost if key and not has_control(key))
        queues = tuple(queue for queue in unknown if self._node.may_be_queue(queue))
        if queues:
            return UnknownNames(queues=queues)
        self._check_cycle(batch, exchange, targets)
        return targets

    def known(self, batch: RoutedBatch) -> list[TargetRun]:
        """The same when the registry has been asked."""
        exchange = self._internal_name(batch.exchange)
        targets = self._targets(batch, exchange)
        self._check_cycle(batch, exchange, targets)
        return targets

    def _check_cycle(self, batch: RoutedBatch, exchange: str, targets: Sequence[TargetRun]) -> None:
        if not batch.except_queues or any(run.queues for run in targets):
            return
        everywhere = self._targets(replace(batch, except_queues=frozenset()), exchange)
        left_out = dict.fromkeys(shown(queue) for run in everywhere for queue in run.queues)
        if left_out:
            raise ClosesCycleError(left_out)

    def _internal_name(self, exchange: str) -> str:
        if exchange:
            # It might name an exchange of another vhost.
            check_name(exchange, "an exchange", field="exchange")
        self._shown, self._exchange = exchange, join_name(self._vhost, exchange)
        return self._exchange

    def _targets(self, batch: RoutedBatch, exchange: str) -> list[TargetRun]:
        routes = self._node.routes
        if not self._is_internal:
            routes.check_publish(exchange)
        if routes.looks_at_headers(exchange):
            headers = batch.headers() or [{}]
            found = [self._queues_of(batch, exchange, each) for each in headers]
            if len(found) == len(batch.bodies):
                return _runs_of(batch, found)
            queues = found[0]
        else:
            queues = self._queues_of(batch, exchange, None)
        return [TargetRun(len(batch.bodies), queues, batch.size_bytes)]

    def _queues_of(
        self, batch: RoutedBatch, exchange: str, headers: Headers | None
    ) -> tuple[str, ...]:
        found = self._node.routes.route(exchange, batch.keys, headers)
        if batch.except_queues:
            return tuple(queue for queue in found if queue not in batch.except_queues)
        return found


def _runs_of(batch: RoutedBatch, found: Sequence[tuple[str, ...]]) -> list[TargetRun]:
    runs: list[TargetRun] = []
    start = 0
    for queues, group in groupby(found):
        stop = start + sum(1 for _ in group)
        size_bytes = size_of(batch.bodies, batch.properties, start, stop)
        runs.append(TargetRun(stop - start, queues, size_bytes))
        start = stop
    return runs
