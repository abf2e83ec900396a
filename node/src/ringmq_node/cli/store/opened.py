"""A stopped node's data directory, opened for a command; progress; texts that several share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import click

from ringmq_node.cli.output import progress_bar
from ringmq_node.storage.errors import StoreError
from ringmq_node.storage.offline import DataDirectory, NotADataDirectoryError, open_offline
from ringmq_node.storage.offline.faults import plain
from ringmq_node.storage.offline.inspection import NothingToInspectError

R = TypeVar("R")

directory_argument = click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)


@contextmanager
def opened(directory: Path) -> Iterator[DataDirectory]:
    """The directory, locked against a node's start. Its failures become those of the command."""
    try:
        with open_offline(directory) as disk:
            yield DataDirectory(directory, disk)
    except (NotADataDirectoryError, NothingToInspectError) as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def with_progress(title: str, total: int, work: Callable[[Callable[[str], None]], R]) -> R:
    """Runs `work` beside a bar of `total` steps.

    `work` gets a function, which it calls after each step with the name of the file or
    queue that is done.
    """
    with progress_bar() as progress:
        task = progress.add_task(title, total=total, note="")

        def on_progress(name: str) -> None:
            progress.update(task, advance=1, note=plain(name))

        return work(on_progress)


class Labelled(Protocol):
    """A result that says which directory it is about. A directory may have lost its label."""

    @property
    def directory(self) -> str: ...
    @property
    def cluster(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...


def label_facts(result: Labelled) -> dict[str, object]:
    cluster, node = result.cluster, result.node
    return {
        "directory": plain(result.directory),
        "cluster": None if cluster is None else plain(cluster),
        "node": None if node is None else plain(node),
    }
