"""Histories judged in Spark, beside the plain checker: one query judges all that a test has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drawn_histories import flawed, sound, wild
from history.checker import Rule, Verdict, check
from history.records import KINDS, Record, to_line
from sparks import evidence

from ringmq_pipeline.cli import invoke
from ringmq_pipeline.cli.errors import EXIT_FAILED, EXIT_FOUND
from ringmq_pipeline.jobs.histories import NEEDED, read_histories, runs_of
from ringmq_pipeline.jobs.verify import RULES, TOTALS, findings, verdicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WILD = 150
SOUND = 10


def write(folder: Path, histories: Mapping[str, Sequence[Record]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in histories.items():
        lines = "".join(f"{to_line(each)}\n" for each in records)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


@contextmanager
def small_splits(spark: SparkSession) -> Iterator[None]:
    """Files are read in parts, by several tasks."""
    settings = {
        "spark.sql.files.maxPartitionBytes": "20000",
        "spark.sql.files.openCostInBytes": "100",
        "spark.sql.files.minPartitionNum": "1",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def expected(verdict: Verdict) -> Counter[str]:
    found = Counter(
        {name: getattr(verdict, name) for name in TOTALS if name not in ("records", "unreadable")}
    )
    for violation in verdict.violations:
        found[violation.rule.name.lower()] += violation.count
    return +found


def by_run(judged: DataFrame) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for row in judged.collect():
        counts = found.setdefault(row["run"], Counter())
        for name in (*TOTALS, *RULES):
            counts[name] += row[name]
    return found


def agree(records: DataFrame, histories: Mapping[str, Sequence[Record]]) -> Counter[str]:
    """How many of the histories break each rule, by both judges."""
    judged = by_run(verdicts(records))
    broken: Counter[str] = Counter()
    for name, history in histories.items():
        found = judged[f"{name}.jsonl"]
        assert found.pop("records") == len(history)
        assert +found == expected(check(history)), name
        broken.update(rule for rule in RULES if found[rule])
    return broken


@pytest.mark.compute
def test_spark_and_the_plain_checker_agree(spark: SparkSession, tmp_path: Path) -> None:
    histories: dict[str, list[Record]] = {f"wild {seed}": wild(seed) for seed in range(WILD)}
    histories |= {f"sound {seed}": sound(seed) for seed in range(SOUND)}
    histories |= {f"{rule.name} flaw": flawed(1, rule) for rule in Rule}
    histories["long"] = sound(1, 400)
    for rule in Rule:
        assert rule in check(histories[f"{rule.name} flaw"]).rules
    for seed in range(SOUND):
        check(histories[f"sound {seed}"]).demand()
    write(tmp_path / "h", histories)
    with small_splits(spark):
        records = read_histories(spark, [str(tmp_path / "h")]).cache()
        assert records.rdd.getNumPartitions() > 3
        broken = agree(records, histories)
    records.unpersist()
    # Else the agreement would show nothing.
    assert all(broken[rule] > 5 for rule in RULES), broken


def test_rules_and_records_are_those_of_the_plain_checker() -> None:
    assert {rule.name.lower(): rule.value for rule in Rule} == RULES
    optional = {"confirm": {"epoch", "master"}}
    for kind, needed in NEEDED.items():
        if needed:
            fields = {*KINDS[kind].__dataclass_fields__} - {"at"} - optional.get(kind, set())
            assert {*needed} == fields
    assert NEEDED.keys() == KINDS.keys()


def test_strangers_may_be_delivered(spark: SparkSession, tmp_path: Path) -> None:
    histories = {str(seed): wild(seed) for seed in range(20)}
    records = read_histories(spark, [str(write(tmp_path / "h", histories))])
    found: Counter[str] = Counter()
    for row in findings(records, strangers=True, rules=["invented"]).collect():
        found[row["run"]] += row["count"]
    verdicts_of = {name: check(history, strangers=True) for name, history in histories.items()}
    wanted = {f"{name}.jsonl": expected(each)["invented"] for name, each in verdicts_of.items()}
    assert found == +Counter(wanted)
    assert 0 < found.total() < sum(expected(check(each))["invented"] for each in histories.values())


def test_findings_say_what_was_seen(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "run=one", {"1": flawed(1, Rule.LOST)[:9]})
    write(tmp_path / "run=one", {"2": flawed(1, Rule.LOST)[9:]})
    records = read_histories(spark, [str(tmp_path)])
    (lost,) = findings(records, rules=["lost"]).collect()
    assert (lost["run"], lost["queue"], lost["rule"]) == ("one", "q", "lost")
    assert lost["what"] in check(flawed(1, Rule.LOST)).violations[0].examples


@pytest.mark.compute
def test_the_verb_prints_its_findings(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = ["--history", str(write(tmp_path / "h", {"a": flawed(2, Rule.TWO_VIEWS)}))]
    assert invoke(["verify", *history, "--to", str(tmp_path / "found")]) == EXIT_FOUND
    told = capsys.readouterr()
    summary = json.loads(told.out)
    assert summary["violations"] == {"two rings in one epoch": 1}
    assert summary["broken_runs"] == ["a.jsonl"]
    (finding,) = map(json.loads, told.err.splitlines())
    assert spark.read.parquet(str(tmp_path / "found")).collect()[0].asDict() == finding


def test_lines_that_are_no_records_are_no_silence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [to_line(sound(1)[0]), '{"kind": "publish", "at": 1.0, "queue": "q"}', '{"kind": "dra']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    read = read_histories(spark, [str(tmp_path)]).select("kind", "reason").collect()
    assert [row["kind"] for row in read] == ["publish", "unreadable", "unreadable"]
    assert "fields are missing" in read[1]["reason"]
    assert read[2]["reason"] == lines[2]
    assert invoke(["verify", "--history", str(tmp_path / "none")]) == EXIT_FAILED
    assert "none" in capsys.readouterr().err


@evidence
def test_the_verb_fails_for_lines_that_are_no_records(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"kind": "dra')
    assert invoke(["verify", "--history", str(tmp_path)]) == EXIT_FAILED
    assert json.loads(capsys.readouterr().out)["unreadable"] == 1


def test_runs_are_files_or_folders_that_say_so() -> None:
    top = "file:///lake/chaos"
    files = [f"{top}/1/history.jsonl", f"{top}/run=a%20b/2.jsonl", f"{top}/run=a%20b/1.jsonl"]
    assert runs_of(files) == [
        ("file:/lake/chaos/1/history.jsonl", "1/history.jsonl", 0),
        ("file:/lake/chaos/run=a%20b/1.jsonl", "a b", 0),
        ("file:/lake/chaos/run=a%20b/2.jsonl", "a b", 1),
    ]
