"""Failover under load: ours beside RabbitMQ's mirrored and quorum queues, in one run.

`command.py` is the verb; `rounds.py` plays the faults and `catchup.py` the return of a mirror;
`load.py` is the publisher that goes on meanwhile, over the `sender` of each system; `tally.py`
computes what the report says.

The network namespaces, our cluster in them and etcd's host are the nemesis's, so that a cut here is
the cut of `make chaos`. Their folders are no part of an installed package: as the Makefile does
for `make chaos`, they are put on the path, behind everything else.
"""

import sys
from pathlib import Path

_TREE = Path(__file__).resolve().parents[2]
for _folder in (
    "cluster-tests/support",
    "cluster-tests/processes/support",
    "base/tests/support",
    "gm/tests/support",
):
    if str(_TREE / _folder) not in sys.path:
        sys.path.append(str(_TREE / _folder))
