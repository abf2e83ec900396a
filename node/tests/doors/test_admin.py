"""The admin service beside a node that is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from loops import run

from ringmq.v1 import admin_pb2 as admin
from ringmq_node.doors.grpc.admin import AdminService
from ringmq_node.model.records import QueueRecord


def test_a_queue_that_is_deleted_while_the_masters_are_asked_is_not_listed() -> None:
    records = {name: QueueRecord(name, name, ("a",), 1) for name in ("p", "q")}

    async def answer(data: bytes, **arguments: object) -> bytes:
        del records["q"]
        return admin.ListQueuesResponse().SerializeToString()

    node = SimpleNamespace(
        directory=SimpleNamespace(records=records),
        group=SimpleNamespace(view=lambda ring: None),
        known_nodes=lambda: [admin.NodeInfo(node="a", address="there")],
        channels=SimpleNamespace(
            to=lambda address: SimpleNamespace(unary_unary=lambda path: answer)
        ),
    )
    context = SimpleNamespace(invocation_metadata=lambda: ())
    service = AdminService(cast(Any, node))
    data = run(service._list_queues(b"", cast(Any, context)))
    assert [info.queue for info in admin.ListQueuesResponse.FromString(data).queues] == ["p"]
