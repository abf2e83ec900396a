from __future__ import annotations

import io
import json
import subprocess
import sys

import click
import pytest

from ringmq_pipeline.cli import VERBS, invoke
from ringmq_pipeline.cli.common import Progress, spark_options
from ringmq_pipeline.cli.errors import (
    EXIT_FAILED,
    EXIT_GONE,
    EXIT_LEASED,
    EXIT_USAGE,
    JobError,
    explain,
)
from ringmq_pipeline.offsets import DataLoss, DataLossError
from ringmq_pipeline.summary import print_summary

# As Spark 4.3 words a failure of a source's process.
OF_SPARK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON]
Traceback (most recent call last):
  File "stream.py", line 1, in hold
ringmq.errors.LeaseHeldError: the lease is held

The above exception was the direct cause of the following exception:

pyspark_ringmq.leases.SourceLeasedError: queue 'a' is leased by 'host:7', which reads it
SQLSTATE: XXKST"""


class FakeSparkError(Exception):
    __module__ = "pyspark.errors.exceptions.captured"


def test_help_and_wrong_usage_need_no_spark() -> None:
    code = (
        "import sys; from ringmq_pipeline.cli import invoke;"
        "assert invoke(['--help']) == 0; assert invoke(['nonsense']) == 2;"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nonsense" in done.stderr


def test_each_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        assert invoke([verb, "--help"]) == 0
        assert verb in capsys.readouterr().out


def test_a_loss_is_one_line_with_the_range_and_a_code_of_its_own() -> None:
    found = explain(DataLossError(DataLoss("a", 5, 9, "the queue was purged")))
    assert found is not None
    assert found.exit_code == EXIT_GONE
    assert "positions 5 to 8" in found.line


def test_errors_of_the_source_are_found_in_those_of_spark() -> None:
    found = explain(FakeSparkError(OF_SPARK))
    assert found is not None
    assert (found.exit_code, "\n" in found.line) == (EXIT_LEASED, False)
    assert "host:7" in found.line


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        ("ringmq.errors.BadRequestError: a name of more than 255 bytes", EXIT_USAGE),
        ("ringmq_pipeline.errors.JobError: t: other columns: " + "x" * 900 + " last", EXIT_FAILED),
    ],
)
def test_what_a_user_can_mend_is_whole_and_has_its_code(error: str, exit_code: int) -> None:
    found = explain(FakeSparkError(f"[STREAM_FAILED] terminated\nTraceback\n{error}\nSQLSTATE: X"))
    assert found is not None
    assert (found.line, found.exit_code) == (error.partition(": ")[2], exit_code)


def test_a_bug_keeps_its_traceback() -> None:
    assert explain(AssertionError("never")) is None
    assert explain(JobError("no such table")) is not None


def test_settings_are_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    seen: dict[str, str] = {}

    @click.command()
    @spark_options
    def verb(master: str, conf: dict[str, str], quiet: bool) -> None:
        seen.update(conf, master=master, quiet=str(quiet))

    verb.main(["--conf", "a.b=c=d", "--quiet"], standalone_mode=False)
    assert seen == {"a.b": "c=d", "master": "local[*]", "quiet": "True"}
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        verb.main(["--conf", "a"], standalone_mode=False)


def test_the_summary_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(quiet=False).show("half of it")
    print_summary("ingest", rows=3)
    assert json.loads(capsys.readouterr().out) == {"verb": "ingest", "rows": 3}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "quiet", "said"),
    [
        (Terminal(), False, "\r100 rows\r7 rows  \n"),
        (Terminal(), True, ""),
        (io.StringIO(), False, ""),
    ],
    ids=["a terminal", "a terminal, --quiet", "no terminal"],
)
def test_progress_is_a_line_of_a_terminal_that_is_written_over(
    stderr: io.StringIO, quiet: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = Progress(quiet=quiet)
    progress.show("100 rows")
    progress.show("7 rows")
    progress.end()
    assert stderr.getvalue() == said
