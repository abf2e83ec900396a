"""The command line `ringmq-pipeline`: one module for each verb, imported when it is needed.

A verb's module has `command`, and imports its job, and with it pyspark, inside the command: help
and wrong options are answered at once.

Exit codes:
0     done
1     failed; one line on stderr says why
2     wrong usage
3     done, and the verb has found what it looks for: replicas differ, or a promise was broken
4     messages that the verb should read are gone; the line names the range
5     another one has the lease of the queue; the line names it
130   interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from ringmq_pipeline.cli.errors import explain

# In the order in which the help lists them; each is a module here.
VERBS: Final[tuple[str, ...]] = (
    "doctor",
    "ingest",
    "replay",
    "scan",
    "salvage",
    "diverge",
    "verify",
    "collect",
    "rollup",
)


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="ringmq", message="ringmq-pipeline %(version)s")
def commands() -> None:
    """Queues and Spark: from queues to tables and back, and what stores and histories show.

    Each verb ends with one line of JSON on stdout; errors are one line on stderr."""


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, by default the one of this process; returns the exit code."""
    try:
        code = commands.main(arguments, prog_name="ringmq-pipeline", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        return help_wanted.exit_code
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        click.echo(f"ringmq-pipeline: {explained.line}", err=True)
        return explained.exit_code
    except KeyboardInterrupt:
        click.echo("ringmq-pipeline: interrupted", err=True)
        return 130


def main() -> None:
    """The entry of the script: runs this process's command line and exits."""
    # gRPC reads this when it is imported. It would log failures that we report in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(invoke())
