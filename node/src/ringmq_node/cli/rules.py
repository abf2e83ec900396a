"""The options of a queue's rules, the same for `queue declare` and `policy set`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from ringmq import Overflow, QueueRules
from ringmq_node.cli.output import QUOTED_NOTHING
from ringmq_node.model.rules import DECLARED_ONLY, OFFERED


@dataclass(frozen=True, slots=True)
class _RuleOption:
    name: str
    # None: a flag.
    type: click.ParamType[Any] | None
    help: str


_OPTIONS = (
    _RuleOption("message_ttl_ms", click.IntRange(0), "How long a message may be ready."),
    _RuleOption("expires_ms", click.IntRange(1), "How long it may be unused before it is deleted."),
    _RuleOption("max_length", click.IntRange(0), "Ready messages."),
    _RuleOption("max_length_bytes", click.IntRange(0), "Bytes of the bodies of ready messages."),
    _RuleOption(
        "overflow",
        click.Choice([each.name.lower().replace("_", "-") for each in Overflow]),
        "What becomes of messages beyond its length.  [default: drop-head]",
    ),
    _RuleOption(
        "dead_letter_exchange",
        click.STRING,
        'Where messages go that leave it unconsumed; "" is the default exchange.',
    ),
    _RuleOption("dead_letter_routing_key", click.STRING, "Their key.  [default: the one they had]"),
    _RuleOption("max_priority", click.IntRange(1, 255), "Levels of priority."),
    _RuleOption(
        "delivery_limit", click.IntRange(0), "How often a message may come back before it leaves."
    ),
    _RuleOption("single_active_consumer", None, "One consumer at a time gets messages."),
    _RuleOption(
        "consumer_timeout_ms", click.IntRange(1), "How long a consumer may have a message."
    ),
)


def rule_options(*, declared: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a declaration, or else of a policy; the command gets them as `rules`."""
    options = [
        each
        for each in _OPTIONS
        if each.name in OFFERED and (declared or each.name not in DECLARED_ONLY)
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_rules(**given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each in options}
            overflow = values.get("overflow")
            if overflow is not None:
                values["overflow"] = Overflow[overflow.upper().replace("-", "_")]
            return command(rules=QueueRules(**values), **given)

        wrapped: Callable[..., Any] = with_rules
        for each in reversed(options):
            flag = "--" + each.name.replace("_", "-")
            if each.type is None:
                added = click.option(flag, each.name, is_flag=True, default=None, help=each.help)
            else:
                added = click.option(flag, each.name, type=each.type, help=each.help)
            wrapped = added(wrapped)
        return wrapped

    return decorate


def rules_json(rules: QueueRules) -> dict[str, Any]:
    """All rules that there are, null if they aren't set."""
    said = rules.facts()
    return {each.name: said.get(each.name) for each in fields(rules) if each.name in OFFERED}


def rules_text(rules: QueueRules) -> str:
    return ", ".join(f"{name} {value or QUOTED_NOTHING}" for name, value in rules.facts().items())
