"""Values of headers and arguments as the wire has them, both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ringmq.v1 import common_pb2 as wire
from ringmq_node.model.fields import (
    VOID,
    FieldValue,
    Headers,
    array,
    integer,
    table,
    table_of,
    values_of,
)


def fields_from_wire(fields: Mapping[str, wire.FieldValue]) -> Headers:
    return {name: field_from_wire(value) for name, value in fields.items()}


def field_from_wire(value: wire.FieldValue) -> FieldValue:
    match value.WhichOneof("value"):
        case "text":
            return FieldValue("text", value.text)
        case "integer":
            return integer(value.integer)
        case "boolean":
            return FieldValue("boolean", value.boolean)
        case "number":
            # What is no number equals nothing, not even itself.
            return FieldValue("float", value.number) if math.isfinite(value.number) else VOID
        case "data":
            return FieldValue("bytes", value.data)
        case "timestamp_s":
            return FieldValue("timestamp", value.timestamp_s)
        case "array":
            return array([*map(field_from_wire, value.array.values)])
        case "table":
            return table(fields_from_wire(value.table.fields))
        case "other":
            return FieldValue("other", (value.other.type, value.other.data))
    return VOID


def field_to_wire(field: FieldValue) -> wire.FieldValue:
    match field.kind, field.value:
        case "text", str() as text:
            return wire.FieldValue(text=text)
        case "integer", int() as number:
            return wire.FieldValue(integer=number)
        case "boolean", bool() as flag:
            return wire.FieldValue(boolean=flag)
        case "float", float() as number:
            return wire.FieldValue(number=number)
        case "bytes", bytes() as data:
            return wire.FieldValue(data=data)
        case "timestamp", int() as seconds:
            return wire.FieldValue(timestamp_s=seconds)
        case "other", (str() as name, bytes() as data):
            return wire.FieldValue(other=wire.OtherField(type=name, data=data))
        case "array", _:
            held = map(field_to_wire, values_of(field))
            return wire.FieldValue(array=wire.FieldArray(values=held))
        case "table", _:
            fields = {name: field_to_wire(each) for name, each in table_of(field).items()}
            return wire.FieldValue(table=wire.FieldTable(fields=fields))
    return wire.FieldValue()
