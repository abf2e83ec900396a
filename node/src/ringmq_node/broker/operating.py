"""What operators change for the whole cluster, through any node: policies.

A change is written to the registry. It is in force on each node as soon as that node's watch has
shown it, and the reconcilers bring the queues there. Every method raises `BrokerError`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from ringmq_node.broker.catalogue import QueueCatalogue, registry_away
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.gate import NodeGate
from ringmq_node.model.policies import Policy, unknown_policy
from ringmq_node.model.reasons import bad_request

logger = logging.getLogger(__name__)

# The share of a call's time that the registry may take.
REGISTRY_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Whether the policy is new, and to how many queues it applies now."""

    created: bool
    queues: int


class Operating:
    """See the module."""

    def __init__(
        self, settings: ClusterSettings, catalogue: QueueCatalogue, gate: NodeGate
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._gate = gate

    # --- policies ---

    def policies(self) -> list[Policy]:
        """In the order in which they are tried; operator policies last."""
        return self._settings.policies()

    async def set_policy(self, policy: Policy, deadline_s: float) -> PolicySet:
        """Adds or replaces it."""
        self._gate.check()
        mirrors = policy.definition.mirrors
        # A name that is mistyped would move the queues away from where they are.
        unknown = [
            node for node in (mirrors and mirrors.nodes) or () if node not in self._settings.nodes
        ]
        if unknown:
            raise bad_request(
                f"mirrors: there is no node {unknown[0]!r}; the cluster has "
                f"{', '.join(sorted(self._settings.nodes))}",
                field="mirrors",
            )
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                created = await self._settings.set_policy(policy)
        except TimeoutError:
            raise registry_away() from None
        logger.warning(
            "%s %s: %r, priority %d, %s",
            "operator policy" if policy.is_operator else "policy",
            policy.name,
            policy.pattern,
            policy.priority,
            policy.definition.facts(),
        )
        return PolicySet(created, self._applied(policy))

    def _applied(self, policy: Policy) -> int:
        wanted = map(self._settings.wanted_of, self._catalogue.records.values())
        names = (each.operator_policy if policy.is_operator else each.policy for each in wanted)
        return sum(name == policy.name for name in names)

    async def delete_policy(self, name: str, deadline_s: float, *, is_operator: bool) -> None:
        self._gate.check()
        try:
            async with asyncio.timeout(deadline_s * REGISTRY_SHARE):
                existed = await self._settings.delete_policy(name, is_operator=is_operator)
        except TimeoutError:
            raise registry_away() from None
        if not existed:
            raise unknown_policy(name, is_operator=is_operator)
        logger.warning("%s %s: deleted", "operator policy" if is_operator else "policy", name)
