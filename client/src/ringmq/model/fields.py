"""Values of headers, and of bindings' arguments, with their types.

A type says what equals what: a headers exchange tells 1 from "1", from 1.0 and from True.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from ringmq.calls.arguments import check_fields
from ringmq.errors import BadRequestError, WrongTypeError
from ringmq.v1 import common_pb2 as wire


@dataclass(frozen=True, slots=True)
class OtherValue:
    """Of a type that only one protocol has, in its encoding."""

    type: str
    data: bytes

    def __post_init__(self) -> None:
        check_fields(self)


#: A time has whole seconds. None is AMQP's void: as a binding's argument "whatever the value".
HeaderValue: TypeAlias = (
    "str | int | bool | float | bytes | datetime | OtherValue | Sequence[HeaderValue]"
    " | Mapping[str, HeaderValue] | None"
)


def fields_to_wire(fields: Mapping[str, HeaderValue]) -> dict[str, wire.FieldValue]:
    """Raises `BadRequestError`, which names the header, for what no header can have."""
    try:
        return {name: field_to_wire(value) for name, value in fields.items()}
    except (TypeError, ValueError, OverflowError):
        for name, value in fields.items():
            _check_header(name, value)
        raise


def _check_header(name: str, value: HeaderValue) -> None:
    try:
        field_to_wire(value)
    except WrongTypeError as error:
        raise WrongTypeError(f"header {name!r}: {error}", metadata={"field": "headers"}) from error
    except UnicodeError as error:
        raise BadRequestError(
            f"header {name!r} is not UTF-8", metadata={"field": "headers"}
        ) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"header {name!r}: {error}", metadata={"field": "headers"}) from error


def field_to_wire(value: HeaderValue) -> wire.FieldValue:
    match value:
        case None:
            return wire.FieldValue()
        case str():
            return wire.FieldValue(text=value)
        case bool():
            return wire.FieldValue(boolean=value)
        case int():
            return wire.FieldValue(integer=value)
        case float():
            return wire.FieldValue(number=value)
        case bytes() | bytearray() | memoryview():
            return wire.FieldValue(data=bytes(value))
        case datetime():
            return wire.FieldValue(timestamp_s=int(value.timestamp()))
        case OtherValue():
            return wire.FieldValue(other=wire.OtherField(type=value.type, data=value.data))
        case Mapping():
            return wire.FieldValue(table=wire.FieldTable(fields=fields_to_wire(value)))
        case Sequence():
            return wire.FieldValue(array=wire.FieldArray(values=map(field_to_wire, value)))
    raise WrongTypeError(f"a header can't have a value of the type {type(value).__name__}")


def fields_from_wire(fields: Mapping[str, wire.FieldValue]) -> dict[str, HeaderValue]:
    return {name: field_from_wire(value) for name, value in fields.items()}


def field_from_wire(field: wire.FieldValue) -> HeaderValue:
    match field.WhichOneof("value"):
        case "text":
            return field.text
        case "integer":
            return field.integer
        case "boolean":
            return field.boolean
        case "number":
            return field.number
        case "data":
            return field.data
        case "timestamp_s":
            return datetime.fromtimestamp(field.timestamp_s, UTC)
        case "array":
            return [field_from_wire(each) for each in field.array.values]
        case "table":
            return fields_from_wire(field.table.fields)
        case "other":
            return OtherValue(field.other.type, field.other.data)
    return None


def shown_field(value: HeaderValue) -> str:
    """As text, for columns and screens that have no other type."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
        case datetime():
            return value.isoformat()
        case OtherValue():
            return f"{value.type}:{value.data.hex()}"
        case str():
            return value
        case Mapping():
            return (
                "{" + ", ".join(f"{key}={shown_field(each)}" for key, each in value.items()) + "}"
            )
        case Sequence():
            return "[" + ", ".join(map(shown_field, value)) + "]"
    return str(value)
