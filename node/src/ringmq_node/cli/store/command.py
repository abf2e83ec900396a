"""The group `ringmq store`: a module beside this one has each of its commands."""

from __future__ import annotations

import click

from ringmq_node.cli.store.inspect import inspect
from ringmq_node.cli.store.stats import stats
from ringmq_node.cli.store.verify import verify


@click.group()
def store() -> None:
    """Look at the data directory of a node that is not running.

    Nothing is written. A directory that a node has open is refused.
    """


for _command in (stats, verify, inspect):
    store.add_command(_command)
