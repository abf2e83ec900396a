"""Each field of each request, with a wire type that isn't its own: refused, and by its place.

Such bytes are no error of protobuf: a parser keeps them as a field that it doesn't know. The fields
come from the descriptors, at any depth, those of repeated messages and of maps too.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass
from node.tests.doors.wrong_types import wrongs

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import reader_pb2 as reader
from ringmq_node.doors.grpc.service import parse_request
from ringmq_node.model.reasons import BrokerError, Reason

SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in ((broker, "Broker"), (admin, "Admin"), (reader, "Reader"))
]
# Unary calls and streams, `Connect` too.
REQUESTS: dict[str, Descriptor] = {
    f"{service.name}/{method.name}": method.input_type
    for service in SERVICES
    for method in service.methods
}


@pytest.mark.parametrize("kind", REQUESTS.values(), ids=REQUESTS.keys())
def test_each_field_with_a_wrong_wire_type_is_named(kind: Descriptor) -> None:
    request: Any = GetMessageClass(kind)
    for wrong in wrongs(kind):
        told = f"{wrong.place}, '{wrong.name}', has wire type"
        with pytest.raises(BrokerError, match=told) as caught:
            parse_request(request, wrong.data)
        assert caught.value.reason is Reason.BAD_REQUEST
        assert caught.value.metadata == {"field": wrong.name}


def test_all_of_a_request_is_looked_at() -> None:
    assert "Broker/Connect" in REQUESTS
    found = {wrong for kind in REQUESTS.values() for wrong in wrongs(kind)}
    fields = {(wrong.place.rsplit(" ", 1)[1], wrong.name) for wrong in found}
    # Of a policy: a list of texts, bools, and an enum. Of a repeated message, of a map's values.
    assert {("Mirrors", "nodes"), ("Policy", "is_operator"), ("PolicyDefinition", "mode")} <= fields
    assert {("QueueRules", "single_active_consumer"), ("Range", "first")} <= fields
    assert {
        ("Death", "routing_keys"),
        ("FieldValue", "number"),
        ("FieldValue", "boolean"),
    } <= fields
