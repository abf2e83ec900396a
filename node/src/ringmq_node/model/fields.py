"""Values with their types: those of headers, and of a binding's arguments. Pure.

Every protocol has its own types, and a door translates them into these kinds. Integers of any width
are one kind, and so are floats. Values are equal if kind and value are, as RabbitMQ compares
headers: so 1 is neither "1" nor 1.0 nor true, and an integer of 8 bits equals one of 64.

What no kind stands for (AMQP's decimals, texts that are no UTF-8) is `other`: the door's name for
its type, and the bytes. Two of these are equal if their bytes are.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal[
    "text",
    "integer",
    "boolean",
    "float",
    "bytes",
    "void",
    "timestamp",
    "array",
    "table",
    "other",
]
Content: TypeAlias = (
    "str | int | float | bytes | tuple[str, bytes] | tuple[FieldValue, ...]"
    " | tuple[tuple[str, FieldValue], ...] | None"
)

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1
TIMESTAMP_MAX = 2**64 - 1
# Of a value that holds others, beside these: so a bound on bytes bounds how deep values nest.
HOLDER_BYTES = 8


class FieldError(ValueError):
    """This is no value of a field."""


class FieldValue(NamedTuple):
    """A tuple, for it is hashed for each header of each message that a headers exchange routes.

    `value` by `kind`: str, int, bool, float, bytes, None, int (seconds since 1970), values, pairs
    of name and value, and a pair of type and bytes.
    """

    kind: Kind
    value: Content

    @property
    def size_bytes(self) -> int:
        match self.value:
            case str() as text:
                return len(text.encode(errors="replace"))
            case bytes() as data:
                return len(data)
            case (str() as name, bytes() as data):
                return len(name) + len(data)
            case tuple() as held:
                return HOLDER_BYTES + sum(map(_held_bytes, held))
        return HOLDER_BYTES


def _held_bytes(held: Any) -> int:
    if isinstance(held, FieldValue):
        return 1 + held.size_bytes
    name, value = held
    return 1 + len(name.encode(errors="replace")) + int(value.size_bytes)


Headers: TypeAlias = Mapping[str, FieldValue]
NO_HEADERS: Headers = {}
VOID = FieldValue("void", None)


def text(value: str) -> FieldValue:
    return FieldValue("text", value)


def integer(value: int) -> FieldValue:
    """Raises `FieldError` beyond 64 bits."""
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise FieldError(f"an integer of 64 bits at most, not {value}")
    return FieldValue("integer", value)


def array(values: Sequence[FieldValue]) -> FieldValue:
    return FieldValue("array", tuple(values))


def table(fields: Headers) -> FieldValue:
    return FieldValue("table", tuple(sorted(fields.items())))


def field_of(value: object) -> FieldValue:
    """Of a value as programs and JSON documents have it. Raises `FieldError`."""
    match value:
        case None:
            return VOID
        case bool():
            return FieldValue("boolean", value)
        case int():
            return integer(value)
        case float():
            if not math.isfinite(value):
                raise FieldError(f"{value} equals nothing")
            return FieldValue("float", value)
        case str():
            return text(value)
        case bytes():
            return FieldValue("bytes", value)
        case list() | tuple():
            return array([*map(field_of, value)])
        case {"ringmq-field": typed, **rest} if not rest:
            return field_of_json(typed)
        case dict() if all(isinstance(name, str) for name in value):
            return table({name: field_of(each) for name, each in value.items()})
    raise FieldError(f"a value of a type that no field has: {value!r}")


def fields_of(values: Mapping[str, object]) -> dict[str, FieldValue]:
    """Raises `FieldError`."""
    return {name: field_of(value) for name, value in values.items()}


def document_of(field: FieldValue) -> object:
    """JSON for people, which `field_of` makes this field of."""
    match field.kind:
        case "array":
            return [*map(document_of, _values(field))]
        case "table":
            return {name: document_of(each) for name, each in table_of(field).items()}
        case "bytes" | "timestamp" | "other":
            return {"ringmq-field": field_to_json(field)}
    return field.value


def table_of(field: FieldValue) -> dict[str, FieldValue]:
    """What a table has; empty if the field is none."""
    if field.kind != "table" or not isinstance(field.value, tuple):
        return {}
    return dict(field.value)


def values_of(field: FieldValue | None) -> tuple[FieldValue, ...]:
    """What an array has; empty if the field is none."""
    return _values(field) if field is not None and field.kind == "array" else ()


def _values(field: FieldValue) -> tuple[FieldValue, ...]:
    # The kind says what the tuple has.
    return field.value  # type: ignore[return-value]


# --- JSON, of the registry's records: `[kind, value]` ---


def field_to_json(field: FieldValue) -> list[Any]:
    match field.kind, field.value:
        case "bytes", bytes() as data:
            return [field.kind, _to_base64(data)]
        case "other", (str() as name, bytes() as data):
            return [field.kind, [name, _to_base64(data)]]
        case "array", _:
            return [field.kind, [*map(field_to_json, _values(field))]]
        case "table", _:
            fields = table_of(field).items()
            return [field.kind, [[name, field_to_json(value)] for name, value in fields]]
    return [field.kind, field.value]


_JSON_TYPES: dict[str, type] = {"text": str, "boolean": bool, "float": float, "void": type(None)}


def field_of_json(json: object) -> FieldValue:
    """Raises `FieldError` for what `field_to_json` can't have made."""
    match json:
        case [("text" | "boolean" | "float" | "void") as kind, value]:
            if type(value) is _JSON_TYPES[kind]:
                return field_of(_checked_text(value))
        case ["integer", int() as value] if type(value) is int:
            return integer(value)
        case ["timestamp", int() as value] if type(value) is int and 0 <= value <= TIMESTAMP_MAX:
            return FieldValue("timestamp", value)
        case ["bytes", str() as encoded]:
            return FieldValue("bytes", _of_base64(encoded))
        case ["other", [str() as name, str() as encoded]]:
            return FieldValue("other", (name, _of_base64(encoded)))
        case ["array", list() as values]:
            return array([*map(field_of_json, values)])
        case ["table", list() as pairs]:
            return table(dict(map(_pair_of_json, pairs)))
    raise FieldError(f"{json!r} is no kind with its value")


def _pair_of_json(pair: object) -> tuple[str, FieldValue]:
    match pair:
        case [str() as name, value]:
            return name, field_of_json(value)
    raise FieldError(f"{pair!r} is no name with its value")


def _checked_text(value: object) -> object:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # JSON can write half a surrogate pair, and no frame or file can.
            raise FieldError(f"{value!r} is no text") from error
    return value


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _of_base64(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(f"{encoded!r} is no base64") from error
