"""Vhosts, exchanges and bindings. A client's `topology` has these calls.

    await client.topology.declare_exchange("logs", ExchangeType.TOPIC)
    await client.topology.bind("logs", "errors", "*.error")

Each says what should be, and is made again at another node as long as there is time.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringmq.calls.arguments import checked_calls
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.errors import ExchangeNotFoundError, VhostNotFoundError
from ringmq.model.fields import HeaderValue
from ringmq.model.topology import (
    Binding,
    Exchange,
    ExchangeType,
    ImportedDefinitions,
    Vhost,
)
from ringmq.v1 import topology_pb2 as wire

LIST_PAGE = 1000


@checked_calls
class TopologyCalls:
    """Made by `Client.topology`. `vhost` is the client's unless said otherwise."""

    def __init__(self, nodes: KnownNodes) -> None:
        self._nodes = nodes

    def _vhost(self, vhost: str) -> str:
        return vhost or self._nodes.vhost

    # --- exchanges ---

    async def declare_exchange(
        self,
        exchange: str,
        type: ExchangeType = ExchangeType.DIRECT,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        alternate_exchange: str = "",
        vhost: str = "",
        deadline_s: float | None = None,
    ) -> Exchange:
        """Creates the exchange, unless it exists and was declared the same; else
        `ExchangeExistsError`.

        `durable` False: it goes with the last node that is up. `auto_delete`: it goes with the last
        binding from it. `internal`: only exchanges publish to it. `alternate_exchange` gets what it
        can't route, and need not exist.
        """
        asked = request_of(
            wire.Exchange,
            vhost=self._vhost(vhost),
            exchange=exchange,
            type=type.value,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            alternate_exchange=alternate_exchange,
        )
        request = wire.DeclareExchangeRequest(exchange=asked)

        async def attempt(node: NodeChannel, timeout_s: float) -> Exchange:
            answer = await node.broker.DeclareExchange(request, timeout=timeout_s)
            return Exchange.from_wire(answer.exchange)

        return await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def exchange(
        self, exchange: str, *, vhost: str = "", deadline_s: float | None = None
    ) -> Exchange:
        """Raises `ExchangeNotFoundError` if there is none."""
        asked = request_of(wire.Exchange, vhost=self._vhost(vhost), exchange=exchange)
        request = wire.DeclareExchangeRequest(exchange=asked, passive=True)

        async def attempt(node: NodeChannel, timeout_s: float) -> Exchange:
            answer = await node.broker.DeclareExchange(request, timeout=timeout_s)
            return Exchange.from_wire(answer.exchange)

        return await self._nodes.call(attempt, deadline_s=deadline_s)

    async def delete_exchange(
        self,
        exchange: str,
        *,
        if_unused: bool = False,
        vhost: str = "",
        deadline_s: float | None = None,
    ) -> None:
        """Deletes the exchange, and the bindings from it and to it."""
        request = request_of(
            wire.DeleteExchangeRequest,
            vhost=self._vhost(vhost),
            exchange=exchange,
            if_unused=if_unused,
        )
        attempts = 0

        async def attempt(node: NodeChannel, timeout_s: float) -> None:
            nonlocal attempts
            attempts += 1
            await node.broker.DeleteExchange(request, timeout=timeout_s)

        try:
            await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)
        except ExchangeNotFoundError:
            # The answer of the first attempt may have been lost.
            if attempts == 1:
                raise

    async def exchanges(
        self, *, vhost: str = "", deadline_s: float | None = None
    ) -> list[Exchange]:
        """By name. The deadline is per page of 1000."""
        found: list[Exchange] = []
        after: str | None = None
        while True:
            request = request_of(
                wire.ListExchangesRequest,
                vhost=self._vhost(vhost),
                exchanges_max=LIST_PAGE,
                after=after,
            )

            async def attempt(
                node: NodeChannel, timeout_s: float, request: wire.ListExchangesRequest = request
            ) -> wire.ListExchangesResponse:
                return await node.admin.ListExchanges(request, timeout=timeout_s)

            page = await self._nodes.call(attempt, deadline_s=deadline_s)
            found += map(Exchange.from_wire, page.exchanges)
            if not page.HasField("next"):
                return found
            after = page.next

    # --- bindings ---

    async def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        arguments: Mapping[str, HeaderValue] | None = None,
        to_exchange: bool = False,
        vhost: str = "",
        deadline_s: float | None = None,
    ) -> bool:
        """Binds the queue `destination`, or with `to_exchange` that exchange, to the exchange
        `source`. Returns whether the binding is new."""
        binding = Binding(
            source,
            destination,
            routing_key,
            arguments or {},
            to_exchange,
            self._vhost(vhost),
        )
        request = wire.BindRequest(binding=binding.to_wire())

        async def attempt(node: NodeChannel, timeout_s: float) -> bool:
            return (await node.broker.Bind(request, timeout=timeout_s)).created

        return await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        arguments: Mapping[str, HeaderValue] | None = None,
        to_exchange: bool = False,
        vhost: str = "",
        deadline_s: float | None = None,
    ) -> bool:
        """Returns whether there was such a binding; or perhaps was, if an attempt's answer was
        lost."""
        binding = Binding(
            source,
            destination,
            routing_key,
            arguments or {},
            to_exchange,
            self._vhost(vhost),
        )
        request = wire.UnbindRequest(binding=binding.to_wire())
        attempts = 0

        async def attempt(node: NodeChannel, timeout_s: float) -> bool:
            nonlocal attempts
            attempts += 1
            removed = (await node.broker.Unbind(request, timeout=timeout_s)).removed
            # An attempt before this one may have removed it, and its answer was lost.
            return removed or attempts > 1

        return await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def bindings(
        self,
        *,
        source: str = "",
        destination: str = "",
        vhost: str = "",
        deadline_s: float | None = None,
    ) -> list[Binding]:
        """By source and destination. The deadline is per page of 1000. That each queue is bound to
        the default exchange by its name is not listed."""
        found: list[Binding] = []
        after = ""
        while True:
            request = request_of(
                wire.ListBindingsRequest,
                vhost=self._vhost(vhost),
                source=source,
                destination=destination,
                bindings_max=LIST_PAGE,
                after=after,
            )

            async def attempt(
                node: NodeChannel, timeout_s: float, request: wire.ListBindingsRequest = request
            ) -> wire.ListBindingsResponse:
                return await node.admin.ListBindings(request, timeout=timeout_s)

            page = await self._nodes.call(attempt, deadline_s=deadline_s)
            found += map(Binding.from_wire, page.bindings)
            if not page.next:
                return sorted(found, key=_order)
            after = page.next

    # --- vhosts ---

    async def create_vhost(self, vhost: str, *, deadline_s: float | None = None) -> bool:
        """Returns whether it is new."""
        request = request_of(wire.CreateVhostRequest, vhost=vhost)

        async def attempt(node: NodeChannel, timeout_s: float) -> bool:
            return (await node.admin.CreateVhost(request, timeout=timeout_s)).created

        return await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)

    async def delete_vhost(
        self, vhost: str, *, force: bool = False, deadline_s: float | None = None
    ) -> int:
        """Deletes the vhost, its exchanges and bindings; with `force` its queues and their
        messages, too, else `VhostInUseError` if it has any. Returns how many queues were deleted,
        as the last attempt counted them."""
        request = request_of(wire.DeleteVhostRequest, vhost=vhost, force=force)
        attempts = 0

        async def attempt(node: NodeChannel, timeout_s: float) -> int:
            nonlocal attempts
            attempts += 1
            return (await node.admin.DeleteVhost(request, timeout=timeout_s)).queues

        try:
            return await self._nodes.call(attempt, deadline_s=deadline_s, changes=True)
        except VhostNotFoundError:
            if attempts == 1:
                raise
            return 0

    async def vhosts(self, *, deadline_s: float | None = None) -> list[Vhost]:
        """By name."""
        request = wire.ListVhostsRequest()

        async def attempt(node: NodeChannel, timeout_s: float) -> list[Vhost]:
            answer = await node.admin.ListVhosts(request, timeout=timeout_s)
            return [Vhost(each.vhost, each.deleting) for each in answer.vhosts]

        return await self._nodes.call(attempt, deadline_s=deadline_s)

    # --- definitions ---

    async def export_definitions(self, *, deadline_s: float | None = None) -> bytes:
        """Everything that is declared, as JSON in the shape of RabbitMQ's definitions.json."""
        request = wire.ExportDefinitionsRequest()

        async def attempt(node: NodeChannel, timeout_s: float) -> bytes:
            answer = await node.admin.ExportDefinitions(request, timeout=timeout_s)
            return answer.definitions

        return await self._nodes.call(attempt, deadline_s=deadline_s)

    async def import_definitions(
        self,
        definitions: bytes,
        *,
        vhost: str = "",
        nodes: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> ImportedDefinitions:
        """Declares what the document has, ours or one of RabbitMQ 3.x, and isn't there. What can't
        be mapped or is refused is in the answer.

        Entries that name no vhost go to `vhost`. `nodes`: by the names that policies in the
        document have for them (`rabbit@a`), the nodes here that are meant.
        """
        request = request_of(
            wire.ImportDefinitionsRequest,
            definitions=definitions,
            vhost=self._vhost(vhost),
            nodes=dict(nodes or {}),
        )
        wanted_s = self._nodes.deadline_s if deadline_s is None else deadline_s

        async def attempt(node: NodeChannel, timeout_s: float) -> ImportedDefinitions:
            answer = await node.admin.ImportDefinitions(request, timeout=timeout_s)
            return ImportedDefinitions(
                answer.created, answer.existing, (*answer.unmapped,), (*answer.failed,)
            )

        # A large document takes its time, and an attempt that is cut short would begin anew.
        return await self._nodes.call(
            attempt, deadline_s=wanted_s, attempt_s=wanted_s, changes=True
        )


def _order(binding: Binding) -> tuple[str, str, str]:
    return binding.source, binding.destination, binding.routing_key
