"""`ringmq exchange ...`, `ringmq binding ...`, `ringmq vhost ...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ringmq import Binding, Exchange, ExchangeType
from ringmq.model.fields import HeaderValue
from ringmq_node.cli.errors import EXIT_FAILED
from ringmq_node.cli.fields import FieldType, field_text, fields_json
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table, fail

F = TypeVar("F", bound=Callable[..., Any])

EXCHANGE_COLUMNS = (
    *("exchange", "type", "durable", "auto delete", "internal", "alternate exchange", "policy"),
)
BINDING_COLUMNS = ("source", "destination", "kind", "routing key", "arguments")


def exchange_json(exchange: Exchange) -> dict[str, Any]:
    return {
        "vhost": exchange.vhost,
        "exchange": exchange.exchange,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "alternate_exchange": exchange.alternate_exchange or None,
        "effective_alternate_exchange": exchange.effective_alternate_exchange or None,
        "policy": exchange.policy or None,
    }


def binding_json(binding: Binding) -> dict[str, Any]:
    return {
        "vhost": binding.vhost,
        "source": binding.source,
        "destination": binding.destination,
        "to_exchange": binding.to_exchange,
        "routing_key": binding.routing_key,
        "arguments": fields_json(binding.arguments),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# --- exchanges ---


@click.group()
def exchange() -> None:
    """Declare, list and delete exchanges."""


@exchange.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice([each.value for each in ExchangeType]),
    default=ExchangeType.DIRECT.value,
    show_default=True,
)
@click.option("--transient", is_flag=True, help="It goes with the last node that is up.")
@click.option("--auto-delete", is_flag=True, help="It goes with the last binding from it.")
@click.option("--internal", is_flag=True, help="Only exchanges publish to it.")
@click.option("--alternate-exchange", default="", help="Gets what the exchange can't route.")
@client_options
def declare(
    name: str,
    kind: str,
    transient: bool,
    auto_delete: bool,
    internal: bool,
    alternate_exchange: str,
    target: Target,
) -> None:
    """Create the exchange NAME, unless it exists and was declared the same."""
    declared = target.run(
        lambda client: client.topology.declare_exchange(
            name,
            ExchangeType(kind),
            durable=not transient,
            auto_delete=auto_delete,
            internal=internal,
            alternate_exchange=alternate_exchange,
        )
    )
    if target.as_json:
        emit_json(exchange_json(declared))
    else:
        click.echo(f"exchange {declared.exchange}: {declared.type}")


@exchange.command("delete")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if there are no bindings from it.")
@client_options
def delete_exchange(name: str, if_unused: bool, target: Target) -> None:
    """Delete the exchange NAME, and the bindings from it and to it."""
    target.run(lambda client: client.topology.delete_exchange(name, if_unused=if_unused))
    if target.as_json:
        emit_json({"vhost": target.vhost, "exchange": name})
    else:
        click.echo(f"exchange {name}: deleted")


@exchange.command("list")
@client_options
def list_exchanges(target: Target) -> None:
    """The exchanges of the vhost, by name. The one without a name is the default exchange."""
    found = target.run(lambda client: client.topology.exchanges())
    if target.as_json:
        emit_json([exchange_json(each) for each in found])
        return
    emit_table(
        EXCHANGE_COLUMNS,
        (
            (
                each.exchange,
                each.type,
                _yes(each.durable),
                _yes(each.auto_delete),
                _yes(each.internal),
                each.effective_alternate_exchange,
                each.policy,
            )
            for each in found
        ),
    )


@exchange.command()
@click.argument("name")
@client_options
def show(name: str, target: Target) -> None:
    """The exchange NAME, and what gets messages that it can't route: by its declaration, or else by
    the policy that applies to it."""
    found = target.run(lambda client: client.topology.exchange(name))
    if target.as_json:
        emit_json(exchange_json(found))
        return
    for key, value in exchange_json(found).items():
        shown = _yes(value) if isinstance(value, bool) else value or "none"
        click.echo(f"{key.replace('_', ' ')}: {shown}")


# --- bindings ---


def _shown(binding: Binding) -> str:
    """Its arguments, as `--argument` takes them."""
    return " ".join(field_text(*each) for each in sorted(binding.arguments.items(), key=_name))


def _name(argument: tuple[str, HeaderValue]) -> str:
    return argument[0]


def binding_options(command: F) -> F:
    """The arguments that name a binding."""
    for option in (
        click.option("--to-exchange", is_flag=True, help="DESTINATION is an exchange."),
        click.option(
            "--argument",
            "-a",
            "arguments",
            type=FieldType(),
            multiple=True,
            help="A header that messages must have: with a text, with a number or another value of "
            "JSON (n:=5), or with any value; or x-match=all|any|all-with-x|any-with-x. Repeatable.",
        ),
        click.argument("routing_key", default=""),
        click.argument("destination"),
        click.argument("source"),
    ):
        command = option(command)
    return command


@click.group()
def binding() -> None:
    """Bind queues and exchanges to exchanges."""


@binding.command()
@binding_options
@client_options
def add(
    source: str,
    destination: str,
    routing_key: str,
    arguments: tuple[tuple[str, HeaderValue], ...],
    to_exchange: bool,
    target: Target,
) -> None:
    """Bind the queue DESTINATION to the exchange SOURCE, with ROUTING_KEY."""
    wanted = Binding(source, destination, routing_key, dict(arguments), to_exchange, target.vhost)
    created = target.run(
        lambda client: client.topology.bind(
            source,
            destination,
            routing_key,
            arguments=wanted.arguments,
            to_exchange=to_exchange,
        )
    )
    if target.as_json:
        emit_json(binding_json(wanted) | {"created": created})
    else:
        click.echo(f"{source} -> {destination}: {'bound' if created else 'was bound already'}")


@binding.command()
@binding_options
@client_options
def remove(
    source: str,
    destination: str,
    routing_key: str,
    arguments: tuple[tuple[str, HeaderValue], ...],
    to_exchange: bool,
    target: Target,
) -> int:
    """Remove the binding of DESTINATION to the exchange SOURCE with ROUTING_KEY.

    Arguments are those of the binding, with their types, as `binding list` shows them.
    """
    wanted = Binding(source, destination, routing_key, dict(arguments), to_exchange, target.vhost)
    removed = target.run(
        lambda client: client.topology.unbind(
            source,
            destination,
            routing_key,
            arguments=wanted.arguments,
            to_exchange=to_exchange,
        )
    )
    if target.as_json:
        emit_json(binding_json(wanted) | {"removed": removed})
    elif removed:
        click.echo(f"{source} -> {destination}: unbound")
    if removed:
        return 0
    said = "".join(f" -a {field_text(name, value)}" for name, value in arguments)
    fail(
        f"there is no binding from {source!r} to {'exchange' if to_exchange else 'queue'} "
        f"{destination!r} with routing key {routing_key!r}{said and ' and' + said}; "
        "`ringmq binding list` shows those there are"
    )
    return EXIT_FAILED


@binding.command("list")
@click.option("--source", default="", help="Only bindings from this exchange.")
@click.option("--destination", default="", help="Only bindings to this queue or exchange.")
@client_options
def list_bindings(source: str, destination: str, target: Target) -> None:
    """The bindings of the vhost, by source and destination."""
    found = target.run(
        lambda client: client.topology.bindings(source=source, destination=destination)
    )
    if target.as_json:
        emit_json([binding_json(each) for each in found])
        return
    emit_table(
        BINDING_COLUMNS,
        (
            (
                each.source,
                each.destination,
                "exchange" if each.to_exchange else "queue",
                each.routing_key,
                _shown(each),
            )
            for each in found
        ),
    )


# --- vhosts ---


@click.group()
def vhost() -> None:
    """Create, list and delete vhosts: names of one know nothing of another."""


@vhost.command()
@click.argument("name")
@client_options
def create(name: str, target: Target) -> None:
    """Create the vhost NAME, unless it exists."""
    created = target.run(lambda client: client.topology.create_vhost(name))
    if target.as_json:
        emit_json({"vhost": name, "created": created})
    else:
        click.echo(f"vhost {name}: {'created' if created else 'was there already'}")


@vhost.command("delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Its queues and their messages, too.")
@client_options
def delete_vhost(name: str, force: bool, target: Target) -> None:
    """Delete the vhost NAME, its exchanges and bindings."""
    queues = target.run(lambda client: client.topology.delete_vhost(name, force=force))
    if target.as_json:
        emit_json({"vhost": name, "queues": queues})
    else:
        click.echo(f"vhost {name}: deleted, with {queues} queues")


@vhost.command("list")
@client_options
def list_vhosts(target: Target) -> None:
    """The vhosts, by name."""
    found = target.run(lambda client: client.topology.vhosts())
    if target.as_json:
        emit_json([{"vhost": each.vhost, "deleting": each.deleting} for each in found])
    else:
        emit_table(
            ("vhost", "state"),
            ((each.vhost, "deleting" if each.deleting else "running") for each in found),
        )
