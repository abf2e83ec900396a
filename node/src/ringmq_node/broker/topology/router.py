"""Which queues a message goes to: exchanges and bindings, compiled for routing. Pure.

* Each queue is found once, however many bindings lead to it, and the queues come in the order of
  their names: the same on every node.
* An exchange's own bindings are tried first. If none of them leads anywhere, its alternate
  exchange is tried, and so on. This holds for each exchange on the way (as in RabbitMQ), so a
  message that one exchange has bound to nothing goes to that one's alternate, even if another one
  has found a queue for it.
* A message with several routing keys is tried with all of them at each exchange: an alternate
  exchange is for a message that none of its keys has led anywhere.
* The alternate exchange is that of the declaration, else that of the policy which applies
  (`model.policies`). A change of policies counts for the next message.
* A circle of exchanges ends: each is tried once for a message.
* A binding counts only as long as both ends are the ones that were bound, by their ids. An end
  that is missing is not an error: records arrive in any order, and a queue's record is removed
  before its bindings are.

Records are put in and taken out one by one, so a change costs what it changes, and not what is
there. Names are internal ones (`model.names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_node.broker.topology.matchers import Matcher, matcher_for
from ringmq_node.model.fields import NO_HEADERS, Headers
from ringmq_node.model.names import SEPARATOR, split_name
from ringmq_node.model.policies import ExchangeWanted, Policy, exchange_wanted_of
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.topology import BindingRecord, ExchangeKind, ExchangeRecord


class PresentQueues(Protocol):
    """The queues that there are, as far as this node knows."""

    def has(self, queue: str) -> bool: ...

    def has_id(self, queue: str, queue_id: str) -> bool:
        """Whether the queue of this name is the one with this id."""
        ...


class _Exchange:
    """One exchange that is there, with the bindings from it."""

    __slots__ = ("is_default", "matcher", "record", "wanted")

    def __init__(self, record: ExchangeRecord, wanted: ExchangeWanted) -> None:
        self.record = record
        self.wanted = wanted
        self.is_default = record.is_default
        self.matcher: Matcher = matcher_for(record.kind)


class Router:
    """See the module. `version` grows with each change of exchanges or bindings, or of policies for
    these; queues that come
    and go don't count."""

    def __init__(self, queues: PresentQueues) -> None:
        self.version = 0
        self._queues = queues
        self._exchanges: dict[str, _Exchange] = {}
        # By the name of the exchange that they lead from, whether it is there or not.
        self._bindings: dict[str, dict[BindingRecord, None]] = {}
        # Whether headers have to be known for a message to an exchange.
        self._looks_at_headers: dict[str, bool] = {}
        # Those for exchanges.
        self._policies: tuple[Policy, ...] = ()

    # --- records ---

    def put_exchange(self, record: ExchangeRecord) -> None:
        self._change()
        known = self._exchanges.get(record.name)
        if known is not None and (known.record.id, known.record.kind) == (record.id, record.kind):
            known.record, known.wanted = record, exchange_wanted_of(record, self._policies)
            return
        wanted = exchange_wanted_of(record, self._policies)
        exchange = self._exchanges[record.name] = _Exchange(record, wanted)
        for binding in self._bindings.get(record.name, ()):
            if binding.source_id == record.id:
                exchange.matcher.add(binding)

    def remove_exchange(self, name: str) -> None:
        self._change()
        self._exchanges.pop(name, None)

    def bind(self, binding: BindingRecord) -> None:
        """Does nothing if it is there."""
        known = self._bindings.setdefault(binding.source, {})
        if binding in known:
            return
        self._change()
        known[binding] = None
        exchange = self._exchanges.get(binding.source)
        if exchange is not None and exchange.record.id == binding.source_id:
            exchange.matcher.add(binding)

    def unbind(self, binding: BindingRecord) -> None:
        """Does nothing if it isn't there."""
        known = self._bindings.get(binding.source, {})
        if binding not in known:
            return
        self._change()
        del known[binding]
        if not known:
            del self._bindings[binding.source]
        exchange = self._exchanges.get(binding.source)
        if exchange is not None and exchange.record.id == binding.source_id:
            exchange.matcher.remove(binding)

    def follow_policies(self, policies: tuple[Policy, ...]) -> None:
        """From now on these are the policies for exchanges."""
        if policies == self._policies:
            return
        self._policies = policies
        self._change()
        for exchange in self._exchanges.values():
            exchange.wanted = exchange_wanted_of(exchange.record, policies)

    def _change(self) -> None:
        self.version += 1
        self._looks_at_headers.clear()

    # --- looking up ---

    def exchange(self, name: str) -> ExchangeRecord:
        """Raises `BrokerError` if there is no such exchange."""
        found = self._exchanges.get(name)
        if found is None:
            raise no_exchange(name)
        return found.record

    def wanted_of(self, record: ExchangeRecord) -> ExchangeWanted:
        """What counts for it by the policies of this moment."""
        return exchange_wanted_of(record, self._policies)

    def check_publish(self, exchange: str) -> None:
        """Raises `BrokerError` unless there is such an exchange, and clients may publish to it."""
        found = self._exchanges.get(exchange)
        if found is None or found.record.internal:
            check_not_internal(self.exchange(exchange))

    def exchanges(self) -> list[ExchangeRecord]:
        return [exchange.record for exchange in self._exchanges.values()]

    def bindings_from(self, exchange: str) -> list[BindingRecord]:
        """All that have this name as their source; dead ones, too."""
        return list(self._bindings.get(exchange, ()))

    def is_live(self, binding: BindingRecord) -> bool:
        """Whether both ends are there, and are those that were bound."""
        source = self._exchanges.get(binding.source)
        return (
            source is not None
            and source.record.id == binding.source_id
            and self.has_end(binding.to_exchange, binding.destination, binding.destination_id)
        )

    def looks_at_headers(self, exchange: str) -> bool:
        """Whether the way of a message to this exchange may depend on its headers. If not, `route`
        needn't be given any. Raises `BrokerError` if there is no such exchange."""
        known = self._looks_at_headers.get(exchange)
        if known is None:
            self.exchange(exchange)
            known = self._looks_at_headers[exchange] = any(
                self._exchanges[name].record.kind is ExchangeKind.HEADERS
                for name in self._reachable(exchange)
            )
        return known

    def _reachable(self, exchange: str) -> list[str]:
        reached = {exchange: None}
        todo = [exchange]
        while todo:
            name = todo.pop()
            ahead = [b.destination for b in self.bindings_from(name) if b.to_exchange]
            ahead.append(self._exchanges[name].wanted.alternate)
            for each in ahead:
                if each in self._exchanges and each not in reached:
                    reached[each] = None
                    todo.append(each)
        return list(reached)

    # --- routing ---

    def route(
        self,
        exchange: str,
        routing_keys: Sequence[str],
        headers: Headers | None = None,
    ) -> tuple[str, ...]:
        """The queues that a message to `exchange` goes to; empty if it is unroutable.

        Raises `BrokerError` if there is no such exchange.
        """
        first = self._exchanges.get(exchange)
        if first is None:
            raise no_exchange(exchange)
        headers = NO_HEADERS if headers is None else headers
        queues: set[str] = set()
        tried = {exchange}
        todo = [first]
        while todo:
            place = todo.pop()
            ahead: list[str] = []
            if not self._match(place, routing_keys, headers, queues, ahead):
                ahead = [place.wanted.alternate] if place.wanted.alternate else []
            for name in ahead:
                following = self._exchanges.get(name)
                if following is not None and name not in tried:
                    tried.add(name)
                    todo.append(following)
        return tuple(sorted(queues))

    def _match(
        self,
        place: _Exchange,
        routing_keys: Sequence[str],
        headers: Headers,
        queues: set[str],
        ahead: list[str],
    ) -> bool:
        """Adds the queues and the exchanges that one exchange leads to; returns whether any."""
        is_matched = False
        for key in routing_keys:
            if place.is_default:
                # A key comes from a client, unchecked: with the separator in it, it would name a
                # queue of another vhost.
                queue = place.record.name + key
                if SEPARATOR not in key and self._queues.has(queue):
                    queues.add(queue)
                    is_matched = True
                continue
            for end in place.matcher.match(key, headers):
                if self.has_end(*end):
                    is_matched = True
                    if end.to_exchange:
                        ahead.append(end.name)
                    else:
                        queues.add(end.name)
        return is_matched

    def has_end(self, to_exchange: bool, name: str, destination_id: str) -> bool:
        if not to_exchange:
            return self._queues.has_id(name, destination_id)
        found = self._exchanges.get(name)
        return found is not None and found.record.id == destination_id


def check_not_internal(exchange: ExchangeRecord) -> None:
    """Raises `BrokerError` if only exchanges publish to it."""
    if exchange.internal:
        raise BrokerError(
            Reason.ACCESS_REFUSED,
            f"exchange {split_name(exchange.name)[1]!r} is internal: only exchanges publish to it",
            field="exchange",
        )


def no_exchange(name: str) -> BrokerError:
    vhost, exchange = split_name(name)
    return BrokerError(
        Reason.EXCHANGE_NOT_FOUND,
        f"there is no exchange {exchange!r} in vhost {vhost!r}",
        exchange=exchange,
        vhost=vhost,
    )
