"""The embedded registry: one SQLite file, for a cluster of processes on one machine.

`registry` is the asyncio side; it runs `file`, which blocks, in `threads`. `connection` opens the
file and deals with its faults, `schema` has the tables.
"""

from ringmq_gm.registry.sqlite.registry import SqliteRegistry

__all__ = ["SqliteRegistry"]
