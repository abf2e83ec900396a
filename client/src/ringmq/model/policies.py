"""Policies: what operators want of the queues and exchanges whose names match a pattern; and moved
masters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringmq.calls.arguments import check_fields
from ringmq.errors import BadRequestError
from ringmq.model.queues import QueueMode, mode_to_wire
from ringmq.model.rules import NO_RULES, QueueRules
from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import common_pb2 as common


class MasterLocator(Enum):
    """Where the master of a new queue goes."""

    CLIENT_LOCAL = common.MASTER_LOCATOR_CLIENT_LOCAL
    MIN_MASTERS = common.MASTER_LOCATOR_MIN_MASTERS
    RANDOM = common.MASTER_LOCATOR_RANDOM


class SyncMode(Enum):
    """When a replica that lacks messages fetches them: at once, or when an operator asks."""

    AUTOMATIC = admin.SYNC_MODE_AUTOMATIC
    MANUAL = admin.SYNC_MODE_MANUAL


class ForcedPromotion(Enum):
    """Whether an operator may promote a replica that may lack confirmed messages."""

    ALLOWED = admin.FORCED_PROMOTION_ALLOWED
    REFUSED = admin.FORCED_PROMOTION_REFUSED


class ApplyTo(Enum):
    """What a policy is for."""

    QUEUES = admin.POLICY_TARGET_QUEUES
    EXCHANGES = admin.POLICY_TARGET_EXCHANGES
    ALL = admin.POLICY_TARGET_ALL


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The nodes that should have a replica: at most `count` (None: all) of `nodes` (None: all)."""

    count: int | None = None
    nodes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        count = "all" if self.count is None else f"exactly {self.count}"
        if self.nodes is None:
            return count
        named = ",".join(self.nodes)
        return f"nodes {named}" if self.count is None else f"{self.count} of {named}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy, or, with `is_operator`, one that bounds what the others ask for. It is for the
    queues of one vhost, for its exchanges, or for both; the vhost is that of the client which sets
    it.

    `pattern` is a regular expression, which may match anywhere in a name unless it is anchored; of
    lookarounds it may have `^(?!...)` at its start. A key that is None is left to others; one at
    least has to be set.
    """

    name: str
    pattern: str
    priority: int = 0
    mirrors: Mirrors | None = None
    min_insync: int | None = None
    sync_mode: SyncMode | None = None
    # Bytes of bodies per second that one replica fetches.
    sync_rate_bytes_max: int | None = None
    master_locator: MasterLocator | None = None
    forced_promotion: ForcedPromotion | None = None
    is_operator: bool = False
    rules: QueueRules = NO_RULES
    # Of queues whose declaration says none.
    mode: QueueMode | None = None
    apply_to: ApplyTo = ApplyTo.QUEUES
    # The one key of exchanges. That of a declaration counts over it.
    alternate_exchange: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def to_wire(self, vhost: str) -> admin.Policy:
        """Raises `BadRequestError` for a number out of its range, or text that isn't UTF-8."""
        try:
            return self._to_wire(vhost)
        except ValueError as error:
            raise BadRequestError(f"policy {self.name!r}: {error}") from error

    def _to_wire(self, vhost: str) -> admin.Policy:
        keys = admin.PolicyDefinition(
            min_insync=self.min_insync or 0,
            sync_rate_bytes_max=self.sync_rate_bytes_max or 0,
            rules=self.rules.to_wire(),
            alternate_exchange=self.alternate_exchange or "",
        )
        if self.mirrors is not None:
            count, nodes = self.mirrors.count or 0, self.mirrors.nodes or ()
            keys.mirrors.CopyFrom(admin.Mirrors(count=count, nodes=nodes))
        if self.sync_mode is not None:
            keys.sync_mode = self.sync_mode.value
        if self.master_locator is not None:
            keys.master_locator = self.master_locator.value
        if self.forced_promotion is not None:
            keys.forced_promotion = self.forced_promotion.value
        if self.mode is not None:
            keys.mode = mode_to_wire(self.mode)
        return admin.Policy(
            name=self.name,
            pattern=self.pattern,
            priority=self.priority,
            definition=keys,
            is_operator=self.is_operator,
            vhost=vhost,
            apply_to=self.apply_to.value,
        )

    @classmethod
    def from_wire(cls, wire: admin.Policy) -> Policy:
        keys = wire.definition
        mirrors = keys.mirrors
        return cls(
            name=wire.name,
            pattern=wire.pattern,
            priority=wire.priority,
            mirrors=Mirrors(mirrors.count or None, tuple(mirrors.nodes) or None)
            if keys.HasField("mirrors")
            else None,
            min_insync=keys.min_insync or None,
            sync_mode=SyncMode(keys.sync_mode) if keys.sync_mode else None,
            sync_rate_bytes_max=keys.sync_rate_bytes_max or None,
            master_locator=MasterLocator(keys.master_locator) if keys.master_locator else None,
            forced_promotion=ForcedPromotion(keys.forced_promotion)
            if keys.forced_promotion
            else None,
            is_operator=wire.is_operator,
            rules=QueueRules.from_wire(keys.rules),
            mode=QueueMode(keys.mode) if keys.mode else None,
            apply_to=ApplyTo(wire.apply_to) if wire.apply_to else ApplyTo.QUEUES,
            alternate_exchange=keys.alternate_exchange or None,
        )


@dataclass(frozen=True, slots=True)
class MasterMove:
    """A master that `rebalance` has moved, or would; `error` says why it didn't."""

    queue: str
    old_master: str
    new_master: str
    error: str = ""
    vhost: str = "/"
