from __future__ import annotations

from pathlib import Path

import pytest

from ringmq_pipeline.cli import invoke

PLACES = ["ingest", "--queue", "a", "--to", "t", "--checkpoint", "c"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--once", "--every", "5s"], "give one of them"),
        (["--decode", "json"], "belong together"),
        (["--quarantine", "q"], "belong together"),
        (["--decode", "json", "--quarantine", "./t"], "is the table of --to"),
        (["--value-schema", "a INT"], "--value-schema is of"),
        (["--conf", "asyncProgressTrackingEnabled=true"], "messages would be lost"),
        (["--option", "asyncProgressTrackingEnabled=true"], "messages would be lost"),
    ],
)
def test_what_would_lose_or_mean_nothing_is_refused(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([*PLACES, *more]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
