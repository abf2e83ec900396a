"""Vhosts, exchanges and bindings over gRPC: methods of `ringmq.v1.Broker` and `ringmq.v1.Admin`."""

from __future__ import annotations

from collections.abc import Mapping

from ringmq.v1 import topology_pb2 as wire
from ringmq_node.broker.topology.arguments import ExchangeArguments, kind_of
from ringmq_node.broker.topology.service import BindingAsked, TopologyService
from ringmq_node.doors.grpc.fields import field_to_wire, fields_from_wire
from ringmq_node.doors.grpc.service import Context, UnaryHandler, caller_of, parse_request
from ringmq_node.model.names import split_name
from ringmq_node.model.policies import ExchangeWanted
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.settings import LIST_MAX
from ringmq_node.model.topology import BindingRecord, ExchangeRecord


class TopologyDoor:
    """Translates for `broker.topology.service`."""

    def __init__(self, topology: TopologyService) -> None:
        self._topology = topology

    def broker_methods(self) -> Mapping[str, UnaryHandler]:
        return {
            "DeclareExchange": self._declare_exchange,
            "DeleteExchange": self._delete_exchange,
            "Bind": self._bind,
            "Unbind": self._unbind,
        }

    def admin_methods(self) -> Mapping[str, UnaryHandler]:
        return {
            "ListExchanges": self._list_exchanges,
            "ListBindings": self._list_bindings,
            "CreateVhost": self._create_vhost,
            "DeleteVhost": self._delete_vhost,
            "ListVhosts": self._list_vhosts,
        }

    # --- exchanges ---

    async def _declare_exchange(self, data: bytes, context: Context) -> bytes:
        request = parse_request(wire.DeclareExchangeRequest, data)
        asked = request.exchange
        if asked.policy or asked.effective_alternate_exchange:
            field = "policy" if asked.policy else "effective_alternate_exchange"
            raise bad_request(f"{field} is told in answers, and can't be declared", field=field)
        created = False
        if not request.passive:
            arguments = ExchangeArguments(
                kind_of(asked.type),
                asked.durable,
                asked.auto_delete,
                asked.internal,
                asked.alternate_exchange,
            )
            created = await self._topology.declare_exchange(
                asked.vhost, asked.exchange, arguments, caller_of(context).deadline_s
            )
        exchange = await self._topology.exchange(asked.vhost, asked.exchange)
        return wire.DeclareExchangeResponse(
            created=created, exchange=self._exchange_to_wire(exchange)
        ).SerializeToString()

    async def _delete_exchange(self, data: bytes, context: Context) -> bytes:
        request = parse_request(wire.DeleteExchangeRequest, data)
        await self._topology.delete_exchange(
            request.vhost,
            request.exchange,
            caller_of(context).deadline_s,
            if_unused=request.if_unused,
        )
        return wire.DeleteExchangeResponse().SerializeToString()

    async def _list_exchanges(self, data: bytes, context: Context) -> bytes:
        request = parse_request(wire.ListExchangesRequest, data)
        count = min(request.exchanges_max or LIST_MAX, LIST_MAX)
        found = await self._topology.exchanges(request.vhost)
        left = [
            each
            for each in found
            if not request.HasField("after") or split_name(each.name)[1] > request.after
        ]
        page = left[:count]
        return wire.ListExchangesResponse(
            exchanges=map(self._exchange_to_wire, page),
            next=split_name(page[-1].name)[1] if len(left) > count else None,
        ).SerializeToString()

    def _exchange_to_wire(self, exchange: ExchangeRecord) -> wire.Exchange:
        return exchange_to_wire(exchange, self._topology.wanted_of(exchange))

    # --- bindings ---

    async def _bind(self, data: bytes, context: Context) -> bytes:
        asked = _binding_from_wire(parse_request(wire.BindRequest, data).binding)
        created = await self._topology.bind(asked, caller_of(context))
        return wire.BindResponse(created=created).SerializeToString()

    async def _unbind(self, data: bytes, context: Context) -> bytes:
        asked = _binding_from_wire(parse_request(wire.UnbindRequest, data).binding)
        removed = await self._topology.unbind(asked, caller_of(context))
        return wire.UnbindResponse(removed=removed).SerializeToString()

    async def _list_bindings(self, data: bytes, context: Context) -> bytes:
        request = parse_request(wire.ListBindingsRequest, data)
        count = min(request.bindings_max or LIST_MAX, LIST_MAX)
        found = await self._topology.bindings(
            request.vhost, source=request.source, destination=request.destination
        )
        # By their keys: a place that is there whatever is bound and unbound between two pages.
        left = sorted(
            ((each.key, each) for each in found if each.key > request.after),
            key=lambda pair: pair[0],
        )
        page = left[:count]
        return wire.ListBindingsResponse(
            bindings=[binding_to_wire(each) for _, each in page],
            next=page[-1][0] if len(left) > count else "",
        ).SerializeToString()

    # --- vhosts ---

    async def _create_vhost(self, data: bytes, context: Context) -> bytes:
        request = parse_request(wire.CreateVhostRequest, data)
        created = await self._topology.create_vhost(request.vhost, caller_of(context).deadline_s)
        return wire.CreateVhostResponse(created=created).SerializeToString()

    async def _delete_vhost(self, data: bytes, context: Context) -> bytes:
        request = parse_request(wire.DeleteVhostRequest, data)
        queues = await self._topology.delete_vhost(
            request.vhost, caller_of(context).deadline_s, force=request.force
        )
        return wire.DeleteVhostResponse(queues=queues).SerializeToString()

    async def _list_vhosts(self, data: bytes, context: Context) -> bytes:
        parse_request(wire.ListVhostsRequest, data)
        return wire.ListVhostsResponse(
            vhosts=[
                wire.Vhost(vhost=each.name, deleting=each.deleting)
                for each in self._topology.vhosts()
            ]
        ).SerializeToString()


def exchange_to_wire(exchange: ExchangeRecord, wanted: ExchangeWanted) -> wire.Exchange:
    vhost, name = split_name(exchange.name)
    return wire.Exchange(
        vhost=vhost,
        exchange=name,
        type=exchange.kind.value,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        alternate_exchange=split_name(exchange.alternate)[1],
        effective_alternate_exchange=split_name(wanted.alternate)[1],
        policy=wanted.policy,
    )


def binding_to_wire(binding: BindingRecord) -> wire.Binding:
    vhost, source = split_name(binding.source)
    return wire.Binding(
        vhost=vhost,
        source=source,
        destination=split_name(binding.destination)[1],
        to_exchange=binding.to_exchange,
        routing_key=binding.routing_key,
        arguments={name: field_to_wire(value) for name, value in binding.arguments},
    )


def _binding_from_wire(binding: wire.Binding) -> BindingAsked:
    if not binding.source and not binding.destination:
        raise bad_request("say what to bind: a source and a destination", field="binding")
    return BindingAsked(
        binding.vhost,
        binding.source,
        binding.destination,
        binding.to_exchange,
        binding.routing_key,
        fields_from_wire(binding.arguments),
    )
