"""The image that a user builds from a checkout has every package.

The tests of containers bring a wheel that was built outside the image, so they would not notice a
package that the context of `docker build` leaves out.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_context_of_the_image_has_the_source_of_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert {str(Path(package).parent) for package in packages} <= kept
