"""Export and import of definitions, as an operator's call.

An import declares the entries of a document, in the order in which things depend on each other:
vhosts, exchanges, queues, bindings, policies. An entry that exists and is the same stays as it is;
one that differs is left alone, and reported. An entry that fails stops only the entries that need
it, so an import that was cut short is repeated.

Only the vhosts that the document lists are created. A vhost that an entry names and nobody has is
more likely a slip than a wish: its entries are refused, in one line.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TypeVar

from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.definitions.document import (
    Definitions,
    read_definitions,
    write_definitions,
)
from ringmq_node.broker.definitions.node_names import NodeNames
from ringmq_node.broker.operating import Operating
from ringmq_node.broker.topology.arguments import BindingWish, ExchangeArguments
from ringmq_node.broker.topology.service import BindingAsked, TopologyService
from ringmq_node.model.names import (
    DEFAULT_VHOST,
    check_vhost,
    join_name,
    shown,
    split_name,
    vhost_of,
)
from ringmq_node.model.policies import Policy
from ringmq_node.model.reasons import BrokerError, bad_request

T = TypeVar("T")

DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
AT_ONCE = 64

# Declares a queue; whether it is new.
DeclareQueue = Callable[[str, QueueArguments], Awaitable[bool]]


@dataclass(slots=True)
class Imported:
    """How many were new and how many are there; `unmapped` and `failed` are lines for people."""

    created: int = 0
    existing: int = 0
    unmapped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class DefinitionsService:
    """See the module."""

    def __init__(
        self, topology: TopologyService, catalogue: QueueCatalogue, operating: Operating
    ) -> None:
        self._topology = topology
        self._catalogue = catalogue
        self._operating = operating

    # --- export ---

    async def export_json(self) -> bytes:
        """The declarations of now, as this node knows them. Exclusive queues are left out: they
        belong to connections."""
        vhosts = [vhost.name for vhost in self._topology.vhosts()]
        exchanges: dict[str, ExchangeArguments] = {}
        bindings: list[BindingWish] = []
        for vhost in vhosts:
            for each in await self._topology.exchanges(vhost):
                if not each.is_predeclared:
                    exchanges[each.name] = ExchangeArguments(
                        each.kind, each.durable, each.auto_delete, each.internal, each.alternate
                    )
            bindings += [
                BindingWish(
                    each.source,
                    each.destination,
                    each.to_exchange,
                    each.routing_key,
                    dict(each.arguments),
                )
                for each in await self._topology.bindings(vhost)
            ]
        queues = {
            record.name: QueueArguments(
                record.replicas,
                record.min_insync,
                record.mode,
                record.durable,
                record.master_locator,
                record.rules,
                record.auto_delete,
                opaque=record.opaque,
            )
            for record in sorted(self._catalogue.records.values(), key=lambda each: each.name)
            if not record.owner and vhost_of(record.name) in vhosts
        }
        definitions = Definitions(
            tuple(vhosts),
            exchanges,
            queues,
            tuple(each for each in bindings if each.to_exchange or each.destination in queues),
            tuple(self._operating.policies()),
        )
        document = write_definitions(definitions, version("ringmq"))
        return json.dumps(document, indent=1, ensure_ascii=False).encode()

    # --- import ---

    async def import_json(
        self,
        document: bytes,
        caller: Caller,
        declare: DeclareQueue,
        *,
        vhost: str = "",
        nodes: Mapping[str, str] | None = None,
    ) -> Imported:
        """Raises `BrokerError` if the document can't be read; nothing is declared then.

        `vhost` is that of entries which name none; `nodes` says which nodes here those of the
        document are.
        """
        definitions = await self._read(document, vhost or DEFAULT_VHOST, nodes or {})
        outcomes = _Outcomes()
        definitions = await self._in_vhosts(definitions, outcomes)
        await self._declare(definitions, caller, declare, outcomes)
        outcomes.imported.unmapped = definitions.unmapped
        return outcomes.imported

    async def _read(self, document: bytes, vhost: str, nodes: Mapping[str, str]) -> Definitions:
        if len(document) > DOCUMENT_BYTES_MAX:
            raise bad_request(
                f"{len(document)} bytes: definitions have at most {DOCUMENT_BYTES_MAX}",
                field="definitions",
            )
        check_vhost(vhost)
        strange = self._operating.unknown_nodes(nodes.values())
        if strange:
            raise bad_request(
                f"there is no node {strange[0]!r} to map to; {self._cluster_said()}", field="nodes"
            )
        names = NodeNames(nodes, self._operating.nodes)
        try:
            definitions = read_definitions(json.loads(document), vhost=vhost, nodes=names)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"no JSON: {error}", field="definitions") from error
        # Refuses if this node takes no calls.
        self._topology.vhosts()
        if vhost not in definitions.vhosts:
            await self._topology.check_vhost(vhost)
        return definitions

    def _cluster_said(self) -> str:
        return f"the cluster has {', '.join(sorted(self._operating.nodes))}"

    async def _in_vhosts(self, definitions: Definitions, outcomes: _Outcomes) -> Definitions:
        """Without the entries of vhosts that neither the document lists nor the cluster has."""
        of: dict[str, Counter[str]] = {}
        for what, name in (
            *(("exchanges", name) for name in definitions.exchanges or ()),
            *(("queues", name) for name in definitions.queues or ()),
            *(("bindings", each.source) for each in definitions.bindings),
            *(("policies", join_name(each.vhost, each.name)) for each in definitions.policies),
        ):
            of.setdefault(vhost_of(name), Counter())[what] += 1
        missing: set[str] = set()
        for vhost, counts in of.items():
            if vhost in definitions.vhosts:
                continue
            try:
                await self._topology.check_vhost(vhost)
            except BrokerError as error:
                missing.add(vhost)
                left_out = ", ".join(f"{what} {count}" for what, count in counts.items())
                outcomes.refuse(
                    f"vhost {vhost!r}: the document doesn't list it, and {error}; left out: "
                    f"{left_out}"
                )
        return replace(
            definitions,
            exchanges=_outside(missing, definitions.exchanges or {}),
            queues=_outside(missing, definitions.queues or {}),
            bindings=tuple(
                each for each in definitions.bindings if vhost_of(each.source) not in missing
            ),
            policies=tuple(each for each in definitions.policies if each.vhost not in missing),
        )

    async def _declare(
        self,
        definitions: Definitions,
        caller: Caller,
        declare: DeclareQueue,
        outcomes: _Outcomes,
    ) -> None:
        topology = self._topology
        until = asyncio.get_running_loop().time() + caller.deadline_s

        def left_s() -> float:
            return max(0.001, until - asyncio.get_running_loop().time())

        async def exchange(item: tuple[str, ExchangeArguments]) -> bool:
            vhost, name = split_name(item[0])
            told = item[1]
            arguments = ExchangeArguments(
                told.kind,
                told.durable,
                told.auto_delete,
                told.internal,
                split_name(told.alternate)[1],
            )
            return await topology.declare_exchange(vhost, name, arguments, left_s())

        async def queue(item: tuple[str, QueueArguments]) -> bool:
            await topology.check_vhost(vhost_of(item[0]))
            # A definition says all that there is: what it leaves out is not to be there.
            exact = replace(item[1], restores=True, exact=True, names_replicas=True)
            return await declare(item[0], exact)

        async def binding(wish: BindingWish) -> bool:
            vhost, source = split_name(wish.source)
            destination = split_name(wish.destination)[1]
            asked = BindingAsked(
                vhost, source, destination, wish.to_exchange, wish.routing_key, wish.arguments
            )
            return await topology.bind(asked, replace(caller, deadline_s=left_s()))

        async def policy(each: Policy) -> bool:
            self._check_nodes(each)
            return (await self._operating.set_policy(each, left_s())).created

        vhosts = [vhost for vhost in definitions.vhosts if vhost != DEFAULT_VHOST]
        await outcomes.gather(
            vhosts, lambda vhost: topology.create_vhost(vhost, left_s()), "vhost {}".format
        )
        exchanges, queues = definitions.exchanges or {}, definitions.queues or {}
        await outcomes.gather(
            exchanges.items(), exchange, lambda item: f"exchange {shown(item[0])}"
        )
        await outcomes.gather(queues.items(), queue, lambda item: f"queue {shown(item[0])}")
        await outcomes.gather(definitions.bindings, binding, _binding_said)
        for each in definitions.policies:
            await outcomes.one(each, policy, str)

    def _check_nodes(self, policy: Policy) -> None:
        """Raises `BrokerError` with the way out, if the policy comes from another cluster."""
        mirrors = policy.definition.mirrors
        strange = self._operating.unknown_nodes((mirrors and mirrors.nodes) or ())
        if strange:
            options = " ".join(f"--node {node}=NODE" for node in strange)
            raise bad_request(
                f"no node here is called {' or '.join(strange)}; {self._cluster_said()}. Say which "
                f"nodes these are: {options}",
                field="mirrors",
            )


def _outside(vhosts: Collection[str], entries: Mapping[str, T]) -> dict[str, T]:
    return {name: each for name, each in entries.items() if vhost_of(name) not in vhosts}


def _binding_said(wish: BindingWish) -> str:
    return f"binding from {shown(wish.source)} to {shown(wish.destination)}"


class _Outcomes:
    """Counts the entries done, and gathers the failures."""

    def __init__(self) -> None:
        self.imported = Imported()
        self._gate = asyncio.Semaphore(AT_ONCE)

    def refuse(self, line: str) -> None:
        self.imported.failed += (line,)

    async def gather(
        self, items: Iterable[T], work: Callable[[T], Awaitable[bool]], said: Callable[[T], str]
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            for item in items:
                tasks.create_task(self.one(item, work, said))

    async def one(
        self, item: T, work: Callable[[T], Awaitable[bool]], said: Callable[[T], str]
    ) -> None:
        async with self._gate:
            try:
                is_new = await work(item)
            except (BrokerError, TimeoutError) as error:
                why = str(error) or "no answer in time; import once more"
                self.refuse(f"{said(item)}: {why}")
            else:
                self.imported.created += is_new
                self.imported.existing += not is_new
