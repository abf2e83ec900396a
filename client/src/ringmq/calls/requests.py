"""Requests made from callers' arguments. A value that the wire can't hold is the caller's error."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

from ringmq.errors import BadRequestError

M = TypeVar("M", bound=Message)


def request_of(kind: type[M], **fields: Any) -> M:
    """`kind(**fields)`. Raises `BadRequestError`, which names the field, for a number out of its
    range and for text that isn't UTF-8 (Python makes such text of stray bytes in `sys.argv`)."""
    try:
        return kind(**fields)
    except ValueError as error:
        name = next(name for name, value in fields.items() if not _fits(kind, name, value))
        what = "is not UTF-8" if isinstance(error, UnicodeError) else "is out of range"
        raise BadRequestError(
            f"{name} {what}: {fields[name]!r}", metadata={"field": name}
        ) from error


def _fits(kind: type[Message], name: str, value: Any) -> bool:
    try:
        kind(**{name: value})
    except ValueError:
        return False
    return True
