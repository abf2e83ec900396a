"""Builds the node's image on a machine whose `docker build` reaches no package index.

`deploy/Dockerfile` installs from a folder `wheels/` in its context if there is one. This fills it:
the wheel of this checkout and the wheels of its dependencies, for the Python, the C library and
the processor of the base image, which need not be this machine's. The build itself runs without
a network.

    .venv/bin/python deploy/ringmq_images.py --base "$(python3 deploy/base_image.py)"
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


def build_image(base: str, tag: str, *, cache: Path | None = None) -> str:
    """Build this checkout into `tag` on top of `base` and return `tag`.

    Unchanged input costs a second or two: docker's own layer cache answers. `ImageError` says
    which command failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringmq-image-") as folder:
        context = Path(folder)
        wheels = context / "wheels"
        _pip("wheel", "--no-deps", "--wheel-dir", str(wheels / "own"), str(CHECKOUT))
        (own_wheel,) = (wheels / "own").glob("ringmq-*.whl")
        for wheel in _dependency_wheels(_platform_of(base), own_wheel, cache or cache_directory()):
            shutil.copy(wheel, wheels)
        (context / "deploy").mkdir()
        for name in ("pyproject.toml", "deploy/Dockerfile", "deploy/healthcheck.py"):
            shutil.copy(CHECKOUT / name, context / name)
        _run(
            *("docker", "build", "--network", "none", "--build-arg", f"BASE={base}"),
            *("--tag", tag, "--file", str(context / "deploy" / "Dockerfile"), str(context)),
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


def _dependency_wheels(platform: Platform, own_wheel: Path, cache: Path) -> list[Path]:
    """The wheels of everything that ringmq depends on; downloaded once per list and platform."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    key = json.dumps([sorted(project["dependencies"]), asdict(platform)])
    folder = cache / f"wheels-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache, prefix="wheels-") as unfinished:
            complete = Path(unfinished) / "complete"
            _pip("download", *platform.pip_arguments(), "--dest", str(complete), str(own_wheel))
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
    parser = argparse.ArgumentParser(description="Build the node's image without a package index.")
    parser.add_argument("--base", default="python:3.12-slim", help="the image to build on")
    parser.add_argument("--tag", default="ringmq:latest", help="the name of the result")
    arguments = parser.parse_args()
    try:
        print(build_image(arguments.base, arguments.tag))
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
