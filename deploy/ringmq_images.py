"""Builds our images on a machine whose `docker build` reaches no package index.

Both Dockerfiles install from a folder `wheels/` in their context if there is one. This fills it:
the wheel of this checkout and the wheels of its dependencies, for the Python, the C library and
the processor of the base image, which need not be this machine's. The build itself runs without
a network.

    .venv/bin/python deploy/ringmq_images.py node --base "$(python3 deploy/base_image.py)"
    .venv/bin/python deploy/ringmq_images.py spark --base "$(python3 deploy/base_image.py)"
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from base_image import cache_directory

CHECKOUT = Path(__file__).resolve().parent.parent
COMMAND_SECONDS_MAX = 600
# Pure Python that the package index has as source only. Its wheel, which fits every platform, is
# built on this machine.
SOURCE_ONLY = ("pyspark",)

ASK_PLATFORM = """
import json, platform, sys
libc, version = platform.libc_ver()
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "machine": platform.machine(),
    "glibc_minor": int(version.split(".")[1]) if libc == "glibc" else 0,
}))
"""


class ImageError(RuntimeError):
    """The image can't be built. The message is the failed command's last words."""


@dataclass(frozen=True)
class Recipe:
    """An image of ours. `files`: what its Dockerfile copies from the checkout besides our wheel.
    `extra`: the one of ringmq whose dependencies it has, too."""

    tag: str
    dockerfile: str
    files: tuple[str, ...]
    extra: str = ""


NODE = Recipe("ringmq:latest", "deploy/Dockerfile", ("deploy/healthcheck.py",))
SPARK = Recipe(
    "ringmq-spark:latest",
    "deploy/spark.Dockerfile",
    ("deploy/spark_daemon.py", "deploy/spark_health.py"),
    extra="pipeline",
)
RECIPES = {"node": NODE, "spark": SPARK}


@dataclass(frozen=True)
class Platform:
    """The properties of an image that decide which wheels it can use."""

    python: str
    machine: str
    glibc_minor: int

    def pip_arguments(self) -> list[str]:
        """The arguments that make pip choose for this platform instead of its own.

        A wheel built for an older glibc runs on a newer one, so every older tag is acceptable.
        """
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc_minor, 4, -1)]
        arguments = [
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={self.python}",
        ]
        return arguments + [f"--platform={tag}" for tag in (*tags, f"manylinux2014_{self.machine}")]


def build_image(recipe: Recipe, base: str, tag: str, *, cache: Path | None = None) -> str:
    """Build this checkout into `tag` on top of `base` and return `tag`.

    Unchanged input costs a second or two: docker's own layer cache answers. `ImageError` says
    which command failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringmq-image-") as folder:
        context = Path(folder)
        wheels = context / "wheels"
        _pip("wheel", "--no-deps", "--wheel-dir", str(wheels / "own"), str(CHECKOUT))
        (own_wheel,) = (wheels / "own").glob("ringmq-*.whl")
        platform, cache = _platform_of(base), cache or cache_directory()
        for wheel in _dependency_wheels(platform, own_wheel, recipe.extra, cache):
            shutil.copy(wheel, wheels)
        (context / "deploy").mkdir()
        for name in ("pyproject.toml", recipe.dockerfile, *recipe.files):
            shutil.copy(CHECKOUT / name, context / name)
        _run(
            *("docker", "build", "--network", "none", "--build-arg", f"BASE={base}"),
            *("--tag", tag, "--file", str(context / recipe.dockerfile), str(context)),
        )
    # Each change of our code leaves the image before it without a name. Those of the last day may
    # still serve as cache; without this, the older ones would fill a machine that builds often.
    _run(
        *("docker", "image", "prune", "--force"),
        *("--filter", "label=ringmq.stage", "--filter", "until=24h"),
    )
    return tag


def _platform_of(image: str) -> Platform:
    out = _run("docker", "run", "--rm", "--network=none", image, "python3", "-c", ASK_PLATFORM)
    return Platform(**json.loads(out.splitlines()[-1]))


def _dependency_wheels(platform: Platform, own_wheel: Path, extra: str, cache: Path) -> list[Path]:
    """The wheels of everything that ringmq depends on; downloaded once per list and platform."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = [*project["dependencies"]]
    if extra:
        wanted += project["optional-dependencies"][extra]
    key = json.dumps([sorted(wanted), asdict(platform)])
    folder = cache / f"wheels-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache, prefix="wheels-") as unfinished:
            built, complete = Path(unfinished) / "built", Path(unfinished) / "complete"
            built.mkdir()
            for requirement in wanted:
                if requirement.startswith(SOURCE_ONLY):
                    _pip("wheel", "--no-deps", "--wheel-dir", str(built), requirement)
            _pip(
                *("download", *platform.pip_arguments(), "--find-links", str(built)),
                *("--dest", str(complete), f"{own_wheel}[{extra}]" if extra else str(own_wheel)),
            )
            (complete / own_wheel.name).unlink()
            try:
                complete.rename(folder)
            except OSError:
                # Somebody else finished first, and theirs is as good; unless there is none.
                if not folder.exists():
                    raise
    return sorted(folder.glob("*.whl"))


def _pip(*arguments: str) -> None:
    _run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ImageError(f"{' '.join(command[:4])} ... exited with {done.returncode}:\n{tail}")
    return done.stdout


def main() -> int:
    """The command line: build, and print the tag."""
    parser = argparse.ArgumentParser(description="Build an image of ours without a package index.")
    parser.add_argument("image", nargs="?", choices=RECIPES, default="node", help="default: node")
    parser.add_argument("--base", default="python:3.12-slim", help="the image to build on")
    parser.add_argument("--tag", help="the name of the result (default: as compose.yaml has it)")
    arguments = parser.parse_args()
    recipe = RECIPES[arguments.image]
    try:
        print(build_image(recipe, arguments.base, arguments.tag or recipe.tag))
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
