"""`ringmq policy ...`: what operators want of queues and exchanges whose names match a pattern."""

from __future__ import annotations

from typing import Any

import click

from ringmq import (
    ApplyTo,
    ForcedPromotion,
    MasterLocator,
    Mirrors,
    Policy,
    QueueMode,
    QueueRules,
    SyncMode,
)
from ringmq_node.cli.options import Target, client_options
from ringmq_node.cli.output import emit_json, emit_table
from ringmq_node.cli.rules import rule_options, rules_json, rules_text

COLUMNS = (
    *("policy", "kind", "apply to", "priority", "pattern", "mirrors", "min insync", "sync mode"),
    *("sync rate", "locator", "forced promotion", "mode", "rules", "alternate exchange"),
)


class MirrorsType(click.ParamType[Mirrors]):
    """`all`, `exactly:N` or `nodes:a,b,c`."""

    name = "mirrors"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mirrors:
        if isinstance(value, Mirrors):
            return value
        kind, _, rest = str(value).partition(":")
        if kind == "all" and not rest:
            return Mirrors()
        # Python's int() takes more than digits: " 3", "1_0", "+2".
        if kind == "exactly" and rest.isascii() and rest.isdigit() and len(rest) < 4:
            return Mirrors(count=int(rest))
        nodes = tuple(node for node in rest.split(",") if node)
        if kind == "nodes" and nodes:
            return Mirrors(nodes=nodes)
        raise click.BadParameter(
            f"{value!r} is not `all`, `exactly:N` or `nodes:a,b,c`", ctx, param
        )


def _named(
    kind: type[MasterLocator] | type[SyncMode] | type[ForcedPromotion] | type[ApplyTo],
) -> click.Choice[str]:
    return click.Choice([_name(each) for each in kind])


def _name(value: MasterLocator | SyncMode | ForcedPromotion | QueueMode | ApplyTo | None) -> str:
    return "" if value is None else value.name.lower().replace("_", "-")


def _member(name: str) -> str:
    return name.upper().replace("-", "_")


locator_type = _named(MasterLocator)


def locator_of(name: str | None) -> MasterLocator | None:
    return None if name is None else MasterLocator[_member(name)]


def policy_json(policy: Policy) -> dict[str, Any]:
    mirrors = policy.mirrors
    return {
        "policy": policy.name,
        "is_operator": policy.is_operator,
        "priority": policy.priority,
        "pattern": policy.pattern,
        "apply_to": _name(policy.apply_to),
        "mirrors": None
        if mirrors is None
        else {
            "count": mirrors.count,
            "nodes": None if mirrors.nodes is None else list(mirrors.nodes),
        },
        "min_insync": policy.min_insync,
        "sync_mode": _name(policy.sync_mode) or None,
        "sync_rate_bytes_max": policy.sync_rate_bytes_max,
        "master_locator": _name(policy.master_locator) or None,
        "forced_promotion": _name(policy.forced_promotion) or None,
        "mode": _name(policy.mode) or None,
        "alternate_exchange": policy.alternate_exchange,
        **rules_json(policy.rules),
    }


@click.group()
def policy() -> None:
    """Say where queues are mirrored, their limits, and what exchanges do with messages that they
    can't route, by patterns of their names."""


@policy.command("set")
@click.argument("name")
@click.argument("pattern")
@click.option("--priority", type=int, default=0, show_default=True, help="The highest applies.")
@click.option(
    "--operator", "is_operator", is_flag=True, help="It bounds what other policies ask for."
)
@click.option("--mirrors", type=MirrorsType(), help="all, exactly:N or nodes:a,b,c.")
@click.option(
    "--min-insync",
    type=click.IntRange(1),
    help="Replicas that must have a message on disk before it is confirmed.",
)
@click.option(
    "--sync-mode",
    type=_named(SyncMode),
    help="Whether a replica that is behind fetches what it lacks at once.",
)
@click.option(
    "--sync-rate-bytes-max", type=click.IntRange(1), help="Bytes per second of such a replica."
)
@click.option("--master-locator", type=locator_type, help="Where the master of a new queue goes.")
@click.option(
    "--forced-promotion",
    type=_named(ForcedPromotion),
    help="Whether `promote --accept-loss` is taken.",
)
@click.option(
    "--mode",
    type=click.Choice(["default", "lazy"]),
    help="Of queues that are declared without one. A lazy queue keeps its messages on disk.",
)
@click.option(
    "--apply-to",
    type=_named(ApplyTo),
    default="queues",
    show_default=True,
    help="What it is for.",
)
@click.option(
    "--alternate-exchange",
    help="Of exchanges that are declared without one: gets what they can't route.",
)
@rule_options(declared=False)
@client_options
def set_policy(
    name: str,
    pattern: str,
    priority: int,
    is_operator: bool,
    mirrors: Mirrors | None,
    min_insync: int | None,
    sync_mode: str | None,
    sync_rate_bytes_max: int | None,
    master_locator: str | None,
    forced_promotion: str | None,
    mode: str | None,
    apply_to: str,
    alternate_exchange: str | None,
    rules: QueueRules,
    target: Target,
) -> None:
    """Add or replace the policy NAME for queues, or exchanges, whose names match PATTERN.

    PATTERN is a regular expression (RE2), and matches anywhere unless it is anchored: ^orders
    """
    wanted = Policy(
        name,
        pattern,
        priority,
        mirrors=mirrors,
        min_insync=min_insync,
        sync_mode=None if sync_mode is None else SyncMode[_member(sync_mode)],
        sync_rate_bytes_max=sync_rate_bytes_max,
        master_locator=locator_of(master_locator),
        forced_promotion=None
        if forced_promotion is None
        else ForcedPromotion[_member(forced_promotion)],
        mode=None if mode is None else QueueMode[_member(mode)],
        is_operator=is_operator,
        rules=rules,
        apply_to=ApplyTo[_member(apply_to)],
        alternate_exchange=alternate_exchange,
    )
    count = target.run(lambda client: client.operator.set_policy(wanted))
    if target.as_json:
        emit_json(policy_json(wanted) | {"applies_to": count})
    else:
        what = "queues and exchanges" if wanted.apply_to is ApplyTo.ALL else apply_to
        click.echo(f"policy {name}: applies to {count} {what}")


@policy.command("list")
@client_options
def list_policies(target: Target) -> None:
    """All policies, in the order in which they are tried; operator policies last."""
    found = target.run(lambda client: client.operator.policies())
    if target.as_json:
        emit_json([policy_json(each) for each in found])
        return
    emit_table(
        COLUMNS,
        (
            (
                each.name,
                "operator" if each.is_operator else "user",
                _name(each.apply_to),
                each.priority,
                each.pattern,
                each.mirrors or "",
                each.min_insync or "",
                _name(each.sync_mode),
                each.sync_rate_bytes_max or "",
                _name(each.master_locator),
                _name(each.forced_promotion),
                _name(each.mode),
                rules_text(each.rules),
                each.alternate_exchange or "",
            )
            for each in found
        ),
    )


@policy.command()
@click.argument("name")
@click.option("--operator", "is_operator", is_flag=True, help="The operator policy of this name.")
@client_options
def delete(name: str, is_operator: bool, target: Target) -> None:
    """Delete the policy NAME."""
    target.run(lambda client: client.operator.delete_policy(name, is_operator=is_operator))
    if target.as_json:
        emit_json({"policy": name, "is_operator": is_operator})
    else:
        click.echo(f"policy {name}: deleted")
