"""All commands, and the one table from errors to a line on stderr and an exit code.

0     done
1     failed; one line on stderr says why
2     wrong usage
3     a guarantee that the command checks doesn't hold: `demo` or `bench` saw lost,
      duplicated, reordered or damaged messages, or `store verify` a directory that isn't sound
130   interrupted
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from ringmq.errors import BadRequestError, RingMQError
from ringmq_node.cli.bench.command import bench
from ringmq_node.cli.cluster.command import cluster
from ringmq_node.cli.cluster.local import LocalClusterError
from ringmq_node.cli.demo.command import demo
from ringmq_node.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from ringmq_node.cli.messages.browse import browse
from ringmq_node.cli.messages.consume import consume
from ringmq_node.cli.messages.publish import publish
from ringmq_node.cli.node import node
from ringmq_node.cli.output import fail
from ringmq_node.cli.policy.command import policy
from ringmq_node.cli.queue.command import queue
from ringmq_node.cli.queue.promote import promote
from ringmq_node.cli.set_aside.command import set_aside
from ringmq_node.cli.store.command import store
from ringmq_node.cli.topology.command import binding, exchange, vhost
from ringmq_node.cli.topology.definitions import definitions
from ringmq_node.config import ConfigError
from ringmq_node.identity import StartError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="ringmq", message="ringmq %(version)s")
def commands() -> None:
    """RingMQ: a message-queue cluster whose queues are mirrored around a ring."""


for _command in (
    node,
    cluster,
    queue,
    promote,
    exchange,
    binding,
    vhost,
    definitions,
    policy,
    publish,
    consume,
    browse,
    store,
    set_aside,
    bench,
    demo,
):
    commands.add_command(_command)


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
