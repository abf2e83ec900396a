"""The names of queues and exchanges inside a node: the vhost and the name, in one string. Pure.

    in vhost "/"         orders
    in any other vhost   shop\\x1forders

So whatever held names before there were vhosts holds them still, and a queue of "/" costs nothing
more. The separator is a control character, which neither vhosts nor names may have: no name
reaches into another vhost, as long as each name that comes from outside is checked (`check_name`,
`check_vhost`) before it is joined.
"""

from __future__ import annotations

import re
import unicodedata

from ringmq_base.limits import QUEUE_NAME_BYTES_MAX
from ringmq_node.model.reasons import bad_request

DEFAULT_VHOST = "/"
SEPARATOR = "\x1f"
# A key of the registry has both, percent-encoded, in 1,024 bytes: three times (79 + 1 + 255), and
# a prefix of 19 bytes at most, which is that of exchanges.
VHOST_NAME_BYTES_MAX = 79


def join_name(vhost: str, name: str) -> str:
    """The internal name. `vhost` "" is "/", as in requests."""
    if vhost in ("", DEFAULT_VHOST):
        return name
    return f"{vhost}{SEPARATOR}{name}"


def split_name(internal: str) -> tuple[str, str]:
    """The vhost and the name."""
    vhost, separator, name = internal.partition(SEPARATOR)
    return (vhost, name) if separator else (DEFAULT_VHOST, internal)


def vhost_of(internal: str) -> str:
    return split_name(internal)[0]


def shown(internal: str) -> str:
    """For logs and errors: the name itself, with its vhost if that isn't "/"."""
    vhost, name = split_name(internal)
    return name if vhost == DEFAULT_VHOST else f"{name} (vhost {vhost})"


# An internal name of another vhost than "/" within a text: as it is, or as Python quotes it.
_QUOTED = re.compile(r"'([^'\x1f]*?)(?:\x1f|\\x1f)([^'\x1f]*)'")
_BARE = re.compile(r"([^\s'\x1f]*)\x1f([^\s:,;]*)")


def shown_text(text: str) -> str:
    """A message for people, in which each internal name is shown with its vhost."""
    if SEPARATOR not in text and "\\x1f" not in text:
        return text
    return _BARE.sub(r"\2 (vhost \1)", _QUOTED.sub(r"'\2' (vhost '\1')", text))


def in_vhost(internal: str, vhost: str) -> bool:
    """`vhost` "" is "/", as in requests."""
    return vhost_of(internal) == (vhost or DEFAULT_VHOST)


def check_vhost(vhost: str, *, field: str = "vhost") -> None:
    """Raises `BrokerError` unless `vhost` can be the name of a vhost."""
    _check(vhost, "a vhost's name", VHOST_NAME_BYTES_MAX, field)


def check_name(name: str, what: str, *, field: str) -> None:
    """Raises `BrokerError` unless `name`, without a vhost, can be a name; `what` says of what."""
    _check(name, f"the name of {what}", QUEUE_NAME_BYTES_MAX, field)


def has_control(text: str) -> bool:
    return any(unicodedata.category(letter) == "Cc" for letter in text)


def _check(name: str, what: str, bytes_max: int, field: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        # A lone surrogate, which JSON can say.
        raise bad_request(f"{what} is no Unicode: {name!r}", field=field) from None
    if not 1 <= size <= bytes_max or has_control(name):
        raise bad_request(
            f"{what} has 1 to {bytes_max} bytes and no control characters; "
            f"this one has {size} bytes",
            field=field,
        )
