"""Values with types on the command line: headers of messages, and arguments of bindings.

What equals what depends on the type: a headers exchange tells 5 from "5" and from 5.0. So the
option has a form for the types of JSON, and a table shows a value in the form that it takes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

import ringmq
from ringmq.model.fields import HeaderValue, OtherValue, fields_to_wire, shown_field

FORMS = "NAME=TEXT|NAME:=JSON|NAME"


class FieldType(click.ParamType[tuple[str, HeaderValue]]):
    """`NAME=TEXT`; `NAME:=JSON`, such as a number or true; or `NAME` without a value."""

    name = FORMS

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, HeaderValue]:
        if isinstance(value, tuple):
            return value
        field = self._parsed(str(value), param, ctx)
        try:
            fields_to_wire(dict([field]))
        except ringmq.BadRequestError as error:
            raise click.BadParameter(str(error), ctx, param) from error
        except RecursionError as error:
            raise click.BadParameter(f"{field[0]}: {error}", ctx, param) from error
        return field

    @staticmethod
    def _parsed(
        given: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, HeaderValue]:
        name, equals, text = given.partition("=")
        typed = name.removesuffix(":")
        if not typed:
            raise click.BadParameter(f"{given!r} is not NAME=VALUE, NAME:=JSON or NAME", ctx, param)
        if typed == name or not equals:
            return name, text if equals else None
        try:
            return typed, json.loads(text)
        except (ValueError, RecursionError) as error:
            shown = repr(text if len(text) <= 100 else f"{text[:100]}...")
            raise click.BadParameter(f"{typed}: {shown} is no JSON: {error}", ctx, param) from error


def field_text(name: str, value: HeaderValue) -> str:
    """As `FieldType` takes it, quoted for a shell. A value of a type that JSON hasn't is shown with
    its type, in a form that isn't taken."""
    if value is None and name.isprintable():
        return shlex.quote(name)
    if isinstance(value, str) and value.isprintable() and not name.endswith(":"):
        return shlex.quote(f"{name}={value}")
    return shlex.quote(f"{name}:={_typed(value)}")


def _typed(value: HeaderValue) -> str:
    match value:
        case bytes():
            return f"bytes({shown_field(value)})"
        case datetime():
            return f"time({shown_field(value)})"
    if not _has_json(value):
        return f"other({shown_field(value)})"
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # A row of a table is one line.
    return text if text.isprintable() else json.dumps(value, separators=(",", ":"))


def _has_json(value: HeaderValue) -> bool:
    match value:
        case bytes() | datetime() | OtherValue():
            return False
        case str():
            return True
        case Mapping():
            return all(map(_has_json, value.values()))
        case Sequence():
            return all(map(_has_json, value))
    return True


def field_json(value: HeaderValue) -> Any:
    """For `--json`: bytes in hexadecimal, a time in ISO 8601, as texts."""
    match value:
        case bytes() | datetime() | OtherValue():
            return shown_field(value)
        case str():
            return value
        case Mapping():
            return fields_json(value)
        case Sequence():
            return [field_json(each) for each in value]
    return value


def fields_json(fields: Mapping[str, HeaderValue]) -> dict[str, Any]:
    return {name: field_json(value) for name, value in fields.items()}
