"""Which disk this is, and which life of the node has used it last: `store.life`.

A node that comes back with an empty directory, or with an older copy of its own, looks like any
other node. But its queues lack messages that it has confirmed, and if it began their rings again,
the intact replicas would follow it and lose theirs. So the directory has an identity of its own,
and remembers the incarnation of each life before that life joins a ring. The registry keeps a copy
of both (`ringmq_node.identity`), and a disk that doesn't match the copy isn't trusted.

The file is replaced as a whole and synced. A damaged one counts as none: then the disk isn't
trusted, and its replicas fetch again what they may lack.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.formats import STORE_LIFE
from ringmq_node.storage.format.texts import decode_texts, encode_texts

LIFE_NAME = "store.life"


@dataclass(frozen=True, slots=True)
class StoreLife:
    """`identity` is made with the directory; `incarnation` is that of the last life in it."""

    identity: str
    incarnation: int


def read_life(disk: Disk, directory: Path) -> StoreLife | None:
    """None if the directory has none, or a damaged one. Raises `OSError`."""
    path = directory / LIFE_NAME
    size = disk.list(directory).get(LIFE_NAME)
    if size is None:
        return None
    texts = decode_texts(STORE_LIFE, path, disk.read(path, 0, size))
    if texts is None or not texts[1].isdecimal():
        return None
    return StoreLife(texts[0], int(texts[1]))


def write_life(disk: Disk, directory: Path, life: StoreLife) -> None:
    """Durable when it returns; after a power cut the old file is there, or the new one.

    Raises `OSError`.
    """
    path = directory / LIFE_NAME
    new = directory / f"{LIFE_NAME}.new"
    disk.remove(new)
    data = encode_texts(STORE_LIFE, life.identity, str(life.incarnation))
    disk.write(new, 0, [data], sync=True)
    disk.rename(new, path)
    disk.sync(directory)
