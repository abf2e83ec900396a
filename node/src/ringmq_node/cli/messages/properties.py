"""Properties of messages: as options of `publish`, and as keys of what --json prints."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from ringmq import Death, Message, Properties
from ringmq.model.fields import HeaderValue
from ringmq_node.cli.fields import FORMS, FieldType, fields_json
from ringmq_node.cli.options import Target

F = TypeVar("F", bound=Callable[..., Any])

# What a publisher says of a message, as texts.
_TEXTS = {
    "message_id": "Its id, for consumers.",
    "correlation_id": "Of an answer: what it answers.",
    "reply_to": "The queue that answers go to.",
    "content_type": "Of the body, such as application/json.",
    "content_encoding": "Of the body, such as gzip.",
    "type": "What kind of message it is.",
    "user_id": "Who has sent it.",
    "app_id": "The program that has sent it.",
    "cluster_id": "The cluster that it is from.",
}
# No option says a `format`: such a message comes from another protocol.
_PRINTED = (*_TEXTS, "timestamp_ms", "format")
# Neither a space nor what JSON begins with.
_PLAIN = re.compile(r"""[^\s"'={}\[\]\\]+""")


def property_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command gets them as `properties`: of all messages; None if there are none."""

    @functools.wraps(command)
    def with_properties(
        *, headers: tuple[tuple[str, HeaderValue], ...], timestamp_ms: int, **given: Any
    ) -> Any:
        texts = {name: given.pop(name) for name in _TEXTS}
        properties = Properties(**texts, timestamp_ms=timestamp_ms, headers=dict(headers))
        # Texts that no message can have are wrong usage: it is said before anybody is asked.
        properties.to_wire()
        return command(properties=None if properties == Properties() else properties, **given)

    wrapped: Callable[..., Any] = click.option(
        "--header",
        "headers",
        type=FieldType(),
        multiple=True,
        metavar=FORMS,
        help="A header with a text, with a number or another value of JSON (n:=5), or with none. "
        "Repeatable.",
    )(with_properties)
    wrapped = click.option(
        "--timestamp-ms",
        type=click.IntRange(0, 2**64 - 1),
        default=0,
        help="When it was made, in milliseconds since 1970.",
    )(wrapped)
    for name, told in reversed(_TEXTS.items()):
        wrapped = click.option("--" + name.replace("_", "-"), name, default="", help=told)(wrapped)
    return wrapped


def properties_json(properties: Properties) -> dict[str, Any]:
    """What a message has beside its body; of what it has not, there is no key."""
    own = {name: value for name in _PRINTED if (value := getattr(properties, name))}
    if properties.foreign:
        own["foreign_base64"] = base64.b64encode(properties.foreign).decode()
    optional: dict[str, Any] = {
        "cc": list(properties.cc),
        "priority": properties.priority,
        "headers": fields_json(properties.headers),
        "properties": own,
        "deaths": [_death_json(each) for each in properties.deaths],
    }
    found: dict[str, Any] = {"exchange": properties.exchange, "routing_key": properties.routing_key}
    found |= {name: value for name, value in optional.items() if value}
    # 0 is a time to live, too.
    if properties.expiration_ms is not None:
        found["expiration_ms"] = properties.expiration_ms
    return found


def _death_json(death: Death) -> dict[str, Any]:
    told = {each.name: getattr(death, each.name) for each in fields(death)}
    told["routing_keys"] = list(death.routing_keys)
    return {name: value for name, value in told.items() if value is not None}


def properties_option(command: F) -> F:
    """`--properties`, as `with_properties`."""
    return click.option(
        "--properties",
        "with_properties",
        is_flag=True,
        help="Before each body what else the message has, as NAME=VALUE, and a tab.",
    )(command)


def check_properties_option(with_properties: bool, target: Target) -> None:
    if with_properties and target.as_json:
        raise click.UsageError("--json has the properties: leave out --properties")


def words(row: Mapping[str, object]) -> str:
    """What --json has of a message, for people: NAME=VALUE for each, on one line without a tab."""
    flat: dict[str, object] = {}
    for name, value in row.items():
        if name == "properties" and isinstance(value, dict):
            flat |= value
        elif name == "headers" and isinstance(value, dict):
            flat |= {f"headers.{_word(header)}": each for header, each in sorted(value.items())}
        else:
            flat[name] = value
    return " ".join(f"{name}={_word(value)}" for name, value in flat.items())


def _word(value: object) -> str:
    """A text that nobody takes for anything else is as it is; all others are JSON."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.isprintable():
        try:
            json.loads(value)
        except ValueError:
            return value
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def message_json(message: Message) -> dict[str, Any]:
    """Its properties, then its body."""
    row = properties_json(message.properties)
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row
