"""Moving the live records out of files that are mostly garbage.

One compaction takes the live records of some files (the victims) into one new file (the
target). Its steps are jobs for a thread (`steps`). The loop plans each one after it has heard of
the end of the one before (`collector`, `moving`):

1. `CopyJob`, many times: copies a bounded piece of one victim to the end of the target. A record
   that is released between two pieces is not in the next one.
2. `PublishJob`: syncs the target and the directory; writes the map of each victim, and anew
   each map that leads into a victim; syncs the directory. When the loop hears that it is
   done, look-ups go to the new places, at once for all of them.
3. `RemoveJob`: removes the victims. It comes after the look-ups have changed. So a reader that
   has looked a record up, and then finds no file, can look again and will find it elsewhere.

A map leads to the record itself, never to another map. Two kinds of files keep it so. Files
that `put` has written, whose locations callers have, get a map when they are moved. Files
that compaction has written are known to maps only, and these maps are written anew.

The power may be cut at any point:

* before the target and its name are durable: no map mentions it. A target that is found at the
  restart has no references, and is removed.
* with a map, and its victim still there: **the data file counts, the map is removed**. The
  victim is whole, whatever became of the rest.
* with some maps anew and others old: each leads to a place that is durable, the target or
  a victim, for a victim goes only when all maps are durable.

A record whose payload is damaged is not copied. It is reported, and its row in the map says
`LOST`, so that reading it raises `CorruptError` for ever. Behind a damaged header the ordinals of
the records are not known. If there are live records behind it, the file is left alone. So is a
file of which a read fails, until the next start: nothing in it is given up.

Transient stores do the same without maps and syncs: after a restart they are empty.
"""

from __future__ import annotations

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.messages.copying import Copier
from ringmq_node.storage.messages.publishing import publish
from ringmq_node.storage.messages.steps import CompactionJob, CopyJob, PublishJob, RemoveJob


def compact(disk: Disk, job: CompactionJob) -> None:
    """Does one step. Runs in a thread; raises `OSError`."""
    match job:
        case RemoveJob():
            for name in job.names:
                disk.remove(job.directory / name)
            if job.persistent:
                disk.sync(job.directory)
        case CopyJob():
            Copier(disk, job).run()
        case PublishJob():
            publish(disk, job)
        case _:
            raise AssertionError(f"unknown step {job!r}")
