"""Set-aside files: messages that a replica was about to cut from its log.

    set-aside/Q-E-N-P.aside   Q the first 12 digits of the name of the queue's folder, E and N the
                              epoch and number of the last op of the log, P the first position

One file of records (see `records`) for each cut, whole when it gets its name:

    15 set aside   JSON in UTF-8, an object: the fields of `SetAsideInfo`
    5 entry        number: first position; flag transient; payload: a block
    6 end          number: messages; epoch: live messages that had no body; payload: bytes of
                   all bodies, u64

The bodies are copies. So nothing in the queue's folder or in the message store is kept for the
file's sake, and removing the file is all that it takes to be rid of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Final, Self, get_type_hints

from ringmq_node.storage.format.records import END_PAYLOAD, RECORD_HEADER_BYTES

DIRECTORY: Final = "set-aside"
SUFFIX: Final = ".aside"
INFO_BYTES_MAX: Final = 1 << 16
END_BYTES: Final = RECORD_HEADER_BYTES + END_PAYLOAD.size
_NAME: Final = re.compile(r"[0-9a-f]{12}(-[0-9]{1,20}){3}")


@dataclass(frozen=True, slots=True)
class SetAsideInfo:
    """The cut. Positions from `first_position` up to `next_position` (not included) were cut off a
    log that ended with op `log_number` of epoch `log_epoch`."""

    queue_id: str
    queue: str
    node: str
    log_epoch: int
    log_number: int
    first_position: int
    next_position: int
    # The ring was begun again in this epoch, from a log that ended so.
    ring_epoch: int
    ring_log_epoch: int
    ring_log_number: int
    # Whether messages among them are known to have been confirmed. Else they may have been.
    confirmed: bool
    # In seconds since 1970.
    at_s: int

    def name(self, folder: str) -> str:
        """Of the file, without its suffix. `folder`: the name of the queue's folder."""
        return f"{folder[:12]}-{self.log_epoch}-{self.log_number}-{self.first_position}"

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `ValueError`."""
        value = json.loads(data)
        hints = get_type_hints(cls)
        if not isinstance(value, dict):
            raise ValueError("the description of a set-aside file is no JSON object")
        for field in fields(cls):
            # Not `isinstance`: for Python a bool is an int.
            if type(value.get(field.name)) is not hints[field.name]:
                raise ValueError(f"the description of a set-aside file has no {field.name}")
        return cls(**{field.name: value[field.name] for field in fields(cls)})


def file_name(name: str) -> str:
    return name + SUFFIX


def name_of(file: str) -> str | None:
    """The name of the set-aside in this file; None if the file is no set-aside."""
    name = file.removesuffix(SUFFIX)
    return name if name != file and _NAME.fullmatch(name) else None
