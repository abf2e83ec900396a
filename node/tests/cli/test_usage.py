"""Wrong usage: exit code 2, and one line on stderr that names the wrong argument."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from ringmq_node.cli.app import commands, invoke
from ringmq_node.cli.node import node
from ringmq_node.config import NodeConfig

NODE_START = ["node", "start", "--node", "a", "--registry", "sqlite:///r", "--data", "d"]

NOT_UTF8 = os.fsdecode(b"\xff\xfe")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RINGMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish"], "give a QUEUE or an --exchange"),
        (["publish", "q", "--exchange", "e"], "give a QUEUE or an --exchange"),
        (["publish", "q", "--mandatory"], "go with --exchange"),
        (["publish", "q", "--bcc", "k"], "go with --exchange"),
        (["publish", "q", "--ttl-ms", "-1"], "-1 is not in the range"),
        (["publish", "q", "--header", "n:=x"], "n: 'x' is no JSON"),
        (["publish", "q", "--timestamp-ms", "-1"], "-1 is not in the range"),
        (["publish", "q", "--message-id", NOT_UTF8], "message_id is not UTF-8"),
        (["publish", "q", "--size", "5"], "--size goes with --count"),
        (["consume", "q", "--follow", "--requeue"], "exclude each other"),
        (["consume", "q", "--auto-ack", "--count", "1"], "exclude each other"),
        (["consume", "q", "--requeue", "--prefetch", "1"], "it takes no prefetch"),
        (["consume", "q", "--properties", "--json"], "--json has the properties"),
        (["browse", "q", "--properties", "--json"], "--json has the properties"),
        (["consume", "q", "--prefetch", "0"], "0 is not in the range"),
        (["consume", "q", "--auto-ack", "--shared-prefetch", "1"], "takes no shared prefetch"),
        (["consume", "q", "r", "--count", "1"], "--requeue and --count take one queue"),
        (["queue", "declare", "q", "--replicas", "0"], "0 is not in the range"),
        (["queue", "declare", "q", "--min-insync", "0"], "0 is not in the range"),
        (["queue", "list", "--timeout", "nan"], "'nan' is not a number"),
        (["demo", "--deadline", "NaN"], "'NaN' is not a number"),
        (["queue", "list", "--seeds", "nowhere"], "'nowhere' is not host:port"),
        (["bench", "both", "--queue", "a", "--queue", "a"], "the same --queue twice"),
        (["queue", "mode", "q", "lazier"], "'lazier' is not one of 'default', 'lazy'"),
        (["queue", "declare", "q", "--mode", ""], "is not one of 'default', 'lazy'"),
        (["nonsense"], "No such command"),
        (["exchange", "declare", "x", "--type", "x-random"], "is not one of 'direct', 'fanout'"),
        (["binding", "add", "x", "q", "-a", "=v"], "'=v' is not NAME=VALUE, NAME:=JSON or NAME"),
        (["binding", "add", "x", "q", "-a", "n:=x"], "n: 'x' is no JSON"),
        (["binding", "add", "x", "q", "-a", f"n={NOT_UTF8}"], "header 'n' is not UTF-8"),
        (["binding", "add", "x"], "Missing argument 'DESTINATION'"),
        (["vhost", "create"], "Missing argument 'NAME'"),
        (["definitions", "import"], "Missing argument 'FILE'"),
        (["definitions", "import", "f", "--node", "a"], "'a' is not OLD=NEW"),
        (["definitions", "import", "f", "--node", "=n1"], "'=n1' is not OLD=NEW"),
        (["definitions", "import", "f", *["--node", "a=n1"] * 2], "'a' is mapped twice"),
        (["policy", "set", "p", "x", "--mirrors", "exactly:+2"], "'exactly:+2' is not `all`"),
        (["policy", "set", "p", "x", "--mirrors", "nodes:"], "is not `all`, `exactly:N`"),
        (["policy", "set", "p", "x", "--sync-mode", "often"], "not one of 'automatic', 'manual'"),
        (["policy", "set", "p", "x", "--min-insync", "0"], "0 is not in the range"),
        (["node", "start", "--node", "a", "--registry", "sqlite:///r"], "data: missing"),
        (["node", "start", "--log-level", "loud"], "node: missing"),
        (
            [*NODE_START, "--memory-watermark", "40"],
            "memory_watermark: '40' is neither a fraction up to 1 nor a size",
        ),
        ([*NODE_START, "--disk-free-limit", "50M"], "disk_free_limit: '50M' is not a size like"),
        (["demo", "--count", "1"], "1000"),
        (["node", "start", "--node", "a", "--registry", "foo", "--data", "d"], "has scheme ''"),
        (["cluster", "up", "--registry", "etcd://a:99999"], "'a:99999' is not host:port"),
        (["cluster", "status", "--seeds", f"{NOT_UTF8}:1"], r"'\udcff\udcfe:1' is no address"),
        (
            ["node", "start", "--data", "d", "--registry", "sqlite:///r", "--node", NOT_UTF8],
            "isn't UTF-8",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ringmq: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_directory_without_a_cluster_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["cluster", "down"]) == 1
    assert "holds no cluster" in capsys.readouterr().err


def test_nobody_there_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    for timeout_s in ("0.2", "1", "5"):
        assert invoke(["queue", "list", "-s", "127.0.0.1:1", "--timeout", timeout_s]) == 1
        said = capsys.readouterr().err
        # On a busy machine it may pass before anybody was asked.
        if not said.startswith("ringmq: no answer within the deadline; last asked: 127.0.0.1:1"):
            break
    assert said.startswith("ringmq: 127.0.0.1:1")


def redirected(redirections: str, *words: str) -> tuple[int, str]:
    """Runs a command from a shell with these redirections; returns its exit code and stderr."""
    command = [sys.executable, "-m", "ringmq_node.cli", *words]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *command],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_closed_descriptors_are_no_abort() -> None:
    """With stdin and stderr closed the command fails as usual, and can't say why."""
    asked = ("queue", "list", "--seeds", "127.0.0.1:1", "--timeout", "0.2")
    assert redirected("0<&- 2>&-", *asked) == (1, "")
    for target in (">&-", ">/dev/full"):
        code, said = redirected(target, "--version")
        assert (code, said.count("\n")) == (1, 1), said
        assert said.startswith("ringmq: ")


def test_each_setting_of_a_node_has_a_flag() -> None:
    flags = {parameter.name for parameter in node.commands["start"].params}
    assert {field.name for field in fields(NodeConfig)} <= flags


def _present(command: click.Command | None) -> click.Command:
    assert command is not None
    return command


def test_all_that_prints_has_json() -> None:
    def leaves(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            return [
                leaf
                for name in command.list_commands(context)
                for leaf in leaves(_present(command.get_command(context, name)), f"{path} {name}")
            ]
        return [(path, command)]

    context = click.Context(commands)
    found = leaves(commands, "ringmq")
    assert len(found) >= 16
    without = [
        path for path, command in found if "as_json" not in {each.name for each in command.params}
    ]
    assert without == []


def test_a_short_command_does_not_import_the_node() -> None:
    """Half a second of processor time each, with the storage engine and the ring."""
    probe = (
        "import sys; from ringmq_node.cli.app import invoke;"
        "invoke(['queue', 'declare', '--help']);"
        "sys.exit(str(sorted(m for m in sys.modules if m.startswith(("
        "'ringmq_node.storage', 'ringmq_node.broker', 'ringmq_gm')))))"
    )
    ended = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert ended.stderr == "[]\n"


def test_the_help_of_bindings_says_how_to_write_a_type(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("add", "remove"):
        assert invoke(["binding", verb, "--help"]) == 0
        assert "NAME=TEXT|NAME:=JSON|NAME" in capsys.readouterr().out
