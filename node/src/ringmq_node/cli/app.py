"""All commands, and the one table from errors to a line on stderr and an exit code.

0     done
1     failed; one line on stderr says why
2     wrong usage
3     a guarantee that the command checks doesn't hold: `demo` or `bench` saw lost,
      duplicated, reordered or damaged messages, or `store verify` a directory that isn't sound
130   interrupted
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from ringmq.errors import BadRequestError, RingMQError
from ringmq_node.cli.cluster.local import LocalClusterError
from ringmq_node.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from ringmq_node.cli.output import fail
from ringmq_node.config import ConfigError
from ringmq_node.errors import StartError

# Where each command is, in the order of the help. Most of the time of a short command would be
# the imports of the others: `click` has this way of its own to put them off.
_COMMANDS = {
    "node": "ringmq_node.cli.node:node",
    "cluster": "ringmq_node.cli.cluster.command:cluster",
    "queue": "ringmq_node.cli.queue.command:queue",
    "promote": "ringmq_node.cli.queue.promote:promote",
    "exchange": "ringmq_node.cli.topology.command:exchange",
    "binding": "ringmq_node.cli.topology.command:binding",
    "vhost": "ringmq_node.cli.topology.command:vhost",
    "definitions": "ringmq_node.cli.topology.definitions:definitions",
    "policy": "ringmq_node.cli.policy.command:policy",
    "publish": "ringmq_node.cli.messages.publish:publish",
    "consume": "ringmq_node.cli.messages.consume:consume",
    "browse": "ringmq_node.cli.messages.browse:browse",
    "store": "ringmq_node.cli.store.command:store",
    "set-aside": "ringmq_node.cli.set_aside.command:set_aside",
    "bench": "ringmq_node.cli.bench.command:bench",
    "demo": "ringmq_node.cli.demo.command:demo",
}


class _Commands(click.Group):
    """Imports a command when it is run, or when its help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="ringmq", message="ringmq %(version)s")
def commands() -> None:
    """RingMQ: a message-queue cluster whose queues are mirrored around a ring."""


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, by default the one of this process; returns the exit code."""
    try:
        code = commands.main(arguments, prog_name="ringmq", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        return EXIT_USAGE
    except click.UsageError as error:
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        fail(error.format_message() + where)
        return EXIT_USAGE
    except click.ClickException as error:
        fail(error.format_message())
        return error.exit_code
    except (ConfigError, BadRequestError) as error:
        fail(str(error))
        return EXIT_USAGE
    except (RingMQError, LocalClusterError, StartError, OSError) as error:
        fail(str(error))
        return EXIT_FAILED
    except UnicodeEncodeError as error:
        fail(f"an argument isn't UTF-8: {error.object!r}")
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted")
        return EXIT_INTERRUPTED
