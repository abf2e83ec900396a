"""What a caller may ask of exchanges and bindings. Pure; every refusal names the field."""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.model.fields import Headers
from ringmq_node.model.names import check_name, has_control, split_name
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.topology import (
    ARGUMENT_BYTES_MAX,
    BINDING_ARGUMENTS_MAX,
    ROUTING_KEY_BYTES_MAX,
    X_MATCH,
    ExchangeKind,
    ExchangeRecord,
    HeaderMatch,
)

RESERVED_PREFIX = "amq."


@dataclass(frozen=True, slots=True)
class ExchangeArguments:
    """`alternate` is an internal name, or ""."""

    kind: ExchangeKind = ExchangeKind.DIRECT
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str = ""


@dataclass(frozen=True, slots=True)
class BindingWish:
    """A binding as a caller describes it; names are internal ones."""

    source: str
    destination: str
    to_exchange: bool = False
    routing_key: str = ""
    arguments: Headers | None = None


def kind_of(name: str) -> ExchangeKind:
    """Raises `BrokerError` for a type of exchange that doesn't exist."""
    try:
        return ExchangeKind(name)
    except ValueError:
        kinds = ", ".join(kind.value for kind in ExchangeKind)
        raise bad_request(
            f"there is no exchange type {name!r}; there are {kinds}", field="type"
        ) from None


def check_exchange_name(name: str) -> None:
    """Raises `BrokerError` unless clients may declare and delete an exchange of this name."""
    if not name or name.startswith(RESERVED_PREFIX):
        raise BrokerError(
            Reason.ACCESS_REFUSED,
            f"exchange {name!r}: the default exchange and names that begin with "
            f"{RESERVED_PREFIX!r} are the broker's own",
            field="exchange",
        )
    check_name(name, "an exchange", field="exchange")


def check_same(existing: ExchangeRecord, asked: ExchangeArguments) -> None:
    """Raises `BrokerError`, which names the first field that differs."""
    fields = (
        ("type", existing.kind.value, asked.kind.value),
        ("durable", existing.durable, asked.durable),
        ("auto_delete", existing.auto_delete, asked.auto_delete),
        ("internal", existing.internal, asked.internal),
        (
            "alternate_exchange",
            split_name(existing.alternate)[1],
            split_name(asked.alternate)[1],
        ),
    )
    for field, is_now, is_asked in fields:
        if is_now != is_asked:
            vhost, name = split_name(existing.name)
            raise BrokerError(
                Reason.EXCHANGE_EXISTS,
                f"exchange {name!r} in vhost {vhost!r} exists with {field} {_shown(is_now)}, "
                f"and was declared with {_shown(is_asked)}",
                exchange=name,
                vhost=vhost,
                field=field,
                existing=_shown(is_now),
                asked=_shown(is_asked),
            )


def _shown(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value or "none"


def check_binding(source: ExchangeRecord, routing_key: str, arguments: Headers) -> None:
    """Raises `BrokerError` unless these can be a binding's."""
    size = len(routing_key.encode())
    if size > ROUTING_KEY_BYTES_MAX or has_control(routing_key):
        raise bad_request(
            f"a routing key has at most {ROUTING_KEY_BYTES_MAX} bytes and no control characters; "
            f"this one has {size} bytes",
            field="routing_key",
        )
    if len(arguments) > BINDING_ARGUMENTS_MAX:
        raise bad_request(
            f"{len(arguments)} arguments: a binding has at most {BINDING_ARGUMENTS_MAX}",
            field="arguments",
        )
    for name, value in arguments.items():
        size = max(len(name.encode(errors="replace")), value.size_bytes)
        if not name or size > ARGUMENT_BYTES_MAX:
            raise bad_request(
                f"argument {name[:40]!r}: a name and a value have at most {ARGUMENT_BYTES_MAX} "
                f"bytes each, and a name has one at least",
                field="arguments",
            )
    match = arguments.get(X_MATCH)
    known = [each.value for each in HeaderMatch]
    if source.kind is ExchangeKind.HEADERS and match is not None and match.value not in known:
        raise bad_request(
            f"{X_MATCH} is {match.value!r}; it is one of {', '.join(known)}", field=X_MATCH
        )
