"""Options that all verbs with a Spark session share, and their progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MASTER: Final = "local[*]"


# `s3://bucket/orders`, `file:///lake`, also with one slash, as a path makes of two.
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class LocalPath(click.Path):
    """A folder or file by its path. An address would name one below the working folder, and
    messages would leave their queue for it."""

    def __init__(self, *, exists: bool = False) -> None:
        super().__init__(exists=exists, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if _ADDRESS.match(str(value)):
            self.fail(
                f"{str(value)!r} is an address: give a path, like /lake/orders",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


def pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", context, parameter)
        found[name] = setting
    return found


def spark_options(command: F) -> F:
    """Adds `--master`, `--conf` and `--quiet`: `master: str`, `conf: dict[str, str]`, and
    `quiet: bool` of the command."""
    for option in (
        click.option("--quiet", is_flag=True, help="No progress on stderr."),
        click.option(
            "--conf",
            multiple=True,
            callback=pairs,
            metavar="NAME=VALUE",
            help="A setting of Spark; may be repeated.",
        ),
        click.option(
            "--master",
            default=DEFAULT_MASTER,
            show_default=True,
            help="Where Spark runs: embedded in this process, or spark://HOST:PORT.",
        ),
    ):
        command = option(command)
    return command


def _stores(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, folder in (value.partition("=")[::2] for value in values):
        if not name or not folder or name in found or "," in folder:
            text = f"{name}={folder}"
            raise click.BadParameter(
                f"{text!r} is not NAME=DIR, each name once", context, parameter
            )
        found[name] = LocalPath().convert(folder, parameter, context)
    return found


def stores_option(command: F) -> F:
    """Adds `--store`, repeated: `stores: dict[str, Path]` by node."""
    return click.option(
        "--store",
        "stores",
        multiple=True,
        required=True,
        callback=_stores,
        metavar="NAME=DIR",
        help="The data directory of a stopped node, or a copy; may be repeated.",
    )(command)


class Progress:
    """One line on stderr that is written over; nothing where stderr is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and sys.stderr.isatty()
        self._width = 0

    def show(self, line: str) -> None:
        if self._shows:
            click.echo("\r" + line.ljust(self._width), nl=False, err=True)
            self._width = len(line)

    def end(self) -> None:
        if self._shows and self._width:
            click.echo("", err=True)


def endpoints_option(command: F) -> F:
    """Adds `--endpoints`: `endpoints: str`, with commas between the addresses."""
    return click.option(
        "--endpoints",
        envvar="RINGMQ_ENDPOINTS",
        default="127.0.0.1:7801",
        show_default=True,
        help="Addresses of nodes, with commas.",
    )(command)
