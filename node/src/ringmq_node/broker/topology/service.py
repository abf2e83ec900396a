"""What doors call for vhosts, exchanges and bindings: the part of `broker.Broker` for topology.

Every method raises `BrokerError`. Names are those of clients, without a vhost; "" as a vhost is
"/". `deadline_s` is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ringmq_gm.registry.base import Registry, RegistryUnavailableError
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.catalogue import QueueCatalogue, registry_away
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.deleting import Deleting
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.topology.arguments import BindingWish, ExchangeArguments
from ringmq_node.broker.topology.changing import TopologyChanges
from ringmq_node.broker.topology.router import check_not_internal
from ringmq_node.broker.topology.topology import Topology
from ringmq_node.model.fields import Headers
from ringmq_node.model.names import DEFAULT_VHOST, SEPARATOR, check_name, check_vhost, join_name
from ringmq_node.model.policies import ExchangeWanted
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import name_of_key, queue_key
from ringmq_node.model.topology import BindingRecord, ExchangeRecord, VhostRecord

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The share of a call's time that the registry may take. The rest is there to tell the client that
# the registry doesn't answer.
REGISTRY_SHARE = 0.75
DELETES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class BindingAsked:
    """A binding as a client describes it."""

    vhost: str
    source: str
    destination: str
    to_exchange: bool = False
    routing_key: str = ""
    arguments: Headers | None = None

    def wish(self) -> BindingWish:
        return BindingWish(
            join_name(self.vhost, self.source),
            join_name(self.vhost, self.destination),
            self.to_exchange,
            self.routing_key,
            self.arguments,
        )


class TopologyService:
    """See the module."""

    def __init__(
        self,
        registry: Registry,
        topology: Topology,
        changes: TopologyChanges,
        catalogue: QueueCatalogue,
        deleting: Deleting,
        gate: NodeGate,
        settings: ClusterSettings,
    ) -> None:
        self._registry = registry
        self._topology = topology
        self._changes = changes
        self._catalogue = catalogue
        self._deleting = deleting
        self._gate = gate
        self._settings = settings

    async def internal_name(self, vhost: str, name: str) -> str:
        """The internal name of a queue or an exchange of a client. For the vhost "/" it asks
        nobody; for another one the registry, if this node doesn't know it."""
        if SEPARATOR in name:
            # It would name a queue of another vhost.
            check_name(name, "a queue", field="queue")
        if vhost in ("", DEFAULT_VHOST):
            return name
        await self.check_vhost(vhost)
        return join_name(vhost, name)

    async def check_vhost(self, vhost: str) -> None:
        """Raises `BrokerError` if there is no such vhost."""
        if vhost not in ("", DEFAULT_VHOST):
            check_vhost(vhost)
            await self._topology.ensure_vhost(vhost)

    # --- exchanges ---

    async def declare_exchange(
        self, vhost: str, name: str, arguments: ExchangeArguments, deadline_s: float
    ) -> bool:
        """Returns whether it is new. The alternate exchange, named like a client's, is of the
        same vhost and need not exist."""
        await self._begin(vhost)
        _check_name(name, "exchange")
        if arguments.alternate:
            _check_name(arguments.alternate, "alternate_exchange")
        inside = ExchangeArguments(
            arguments.kind,
            arguments.durable,
            arguments.auto_delete,
            arguments.internal,
            join_name(vhost, arguments.alternate) if arguments.alternate else "",
        )
        declared = self._changes.declare_exchange(join_name(vhost, name), inside)
        return await _in_time(declared, deadline_s)

    async def delete_exchange(
        self, vhost: str, name: str, deadline_s: float, *, if_unused: bool
    ) -> None:
        await self._begin(vhost)
        _check_name(name, "exchange")
        internal = join_name(vhost, name)
        await _in_time(self._changes.delete_exchange(internal, if_unused=if_unused), deadline_s)

    async def exchange(self, vhost: str, name: str) -> ExchangeRecord:
        await self._begin(vhost)
        _check_name(name, "exchange")
        return await self._topology.ensure_exchange(join_name(vhost, name))

    def wanted_of(self, exchange: ExchangeRecord) -> ExchangeWanted:
        """What counts for it, by its declaration and policy."""
        return self._topology.router.wanted_of(exchange)

    async def check_publish(self, vhost: str, exchange: str) -> None:
        """Raises `BrokerError` unless clients may publish to the exchange. Asks nobody about one
        that this node knows."""
        check_not_internal(await self.exchange(vhost, exchange))

    async def look_up_exchanges(self, names: Sequence[str]) -> None:
        """Returns when this node has heard of those of them that exist, by their internal names;
        at most `OPERATIONS_MAX`."""
        await self._topology.look_up_exchanges(names)

    async def exchanges(self, vhost: str) -> list[ExchangeRecord]:
        await self._begin(vhost)
        return self._topology.exchanges(vhost)

    # --- bindings ---

    async def bind(self, asked: BindingAsked, caller: Caller) -> bool:
        """Returns whether the binding is new."""
        await self._begin(asked.vhost)
        _check_ends(asked)
        return await _in_time(self._changes.bind(asked.wish(), caller), caller.deadline_s)

    async def unbind(self, asked: BindingAsked, caller: Caller) -> bool:
        """Returns whether there was such a binding."""
        await self._begin(asked.vhost)
        _check_ends(asked)
        return await _in_time(self._changes.unbind(asked.wish(), caller), caller.deadline_s)

    async def bindings(
        self, vhost: str, *, source: str = "", destination: str = ""
    ) -> list[BindingRecord]:
        """In order of their ends and keys. The queues' bindings to the default exchange are not
        among them: they have no records."""
        await self._begin(vhost)
        if source:
            _check_name(source, "source")
            await self._topology.ensure_exchange(join_name(vhost, source))
        if destination:
            _check_name(destination, "destination")
        return self._topology.bindings(vhost, source=source, destination=destination)

    # --- vhosts ---

    def vhosts(self) -> list[VhostRecord]:
        self._gate.check()
        return self._topology.vhosts()

    async def create_vhost(self, vhost: str, deadline_s: float) -> bool:
        """Returns whether it is new."""
        self._gate.check()
        return await _in_time(self._changes.create_vhost(vhost), deadline_s)

    async def delete_vhost(self, vhost: str, deadline_s: float, *, force: bool) -> int:
        """Deletes it with its exchanges, bindings and policies; returns how many queues went, too.

        It must have no queues, unless `force`. From the mark on nothing is declared in it, so the
        queues that are found then are all. A call that fails after that leaves the mark, and is
        to be repeated.
        """
        self._gate.check()
        check_vhost(vhost)
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                if not force:
                    _check_no_queues(vhost, await self._queues_of(vhost))
                await self._changes.mark_vhost(vhost, deleting=True)
                queues = await self._queues_of(vhost)
                if queues and not force:
                    await self._changes.mark_vhost(vhost, deleting=False)
                    _check_no_queues(vhost, queues)
                await self._delete_queues(queues)
                await self._settings.delete_policies_of(vhost)
                await self._changes.remove_vhost(vhost)
        except TimeoutError:
            raise registry_away() from None
        logger.warning("vhost %s: deleted, with %d queues", vhost, len(queues))
        return len(queues)

    async def _queues_of(self, vhost: str) -> list[str]:
        """As the registry has them: this node's watch may be behind."""
        try:
            entries = (await self._registry.list(queue_key(join_name(vhost, "")))).entries
        except RegistryUnavailableError as error:
            raise registry_away() from error
        return [name_of_key(entry.key) for entry in entries] if vhost != DEFAULT_VHOST else []

    async def _delete_queues(self, queues: list[str]) -> None:
        gate = asyncio.Semaphore(DELETES_AT_ONCE)

        async def delete(queue: str) -> None:
            async with gate:
                await self._catalogue.ensure_known(queue)
                try:
                    await self._deleting.delete(queue)
                except BrokerError as error:
                    # Deleted meanwhile.
                    if error.reason is not Reason.QUEUE_NOT_FOUND:
                        raise

        try:
            async with asyncio.TaskGroup() as tasks:
                for queue in queues:
                    tasks.create_task(delete(queue))
        except* BrokerError as failed:
            # One of them is enough to say why.
            raise next(
                each for each in failed.exceptions if isinstance(each, BrokerError)
            ) from None

    async def _begin(self, vhost: str) -> None:
        self._gate.check()
        await self.check_vhost(vhost)


def _check_no_queues(vhost: str, queues: list[str]) -> None:
    if queues:
        raise BrokerError(
            Reason.VHOST_IN_USE,
            f"vhost {vhost!r} has {len(queues)} queues; `force` deletes them with it",
            vhost=vhost,
            queues=len(queues),
        )


def _check_name(name: str, field: str) -> None:
    # "" is the default exchange: there, and refused where it can't be used.
    if name:
        check_name(name, "an exchange", field=field)


def _check_ends(asked: BindingAsked) -> None:
    _check_name(asked.source, "source")
    what = "an exchange" if asked.to_exchange else "a queue"
    if asked.destination or not asked.to_exchange:
        check_name(asked.destination, what, field="destination")


async def _in_time(work: Awaitable[T], deadline_s: float) -> T:
    """Refuses while there is time to say why."""
    try:
        async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
            return await work
    except TimeoutError:
        raise registry_away() from None
