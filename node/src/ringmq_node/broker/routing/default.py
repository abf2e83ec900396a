"""The default exchange alone: every queue by its name. Until the topology has its own router."""

from __future__ import annotations

from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.topology.router import Router
from ringmq_node.model.topology import ExchangeKind, ExchangeRecord


class _CatalogueQueues:
    def __init__(self, catalogue: QueueCatalogue) -> None:
        self._catalogue = catalogue

    def has(self, queue: str) -> bool:
        return queue in self._catalogue.records

    def has_id(self, queue: str, queue_id: str) -> bool:
        record = self._catalogue.records.get(queue)
        return record is not None and record.id == queue_id


def default_routes(catalogue: QueueCatalogue) -> Router:
    router = Router(_CatalogueQueues(catalogue))
    router.put_exchange(ExchangeRecord("", "default", ExchangeKind.DIRECT))
    return router
