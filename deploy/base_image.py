"""Makes the base image of a machine that has no image registry: Debian, Python and etcd.

Why: `deploy/Dockerfile` builds on `python:3.12-slim`, which is fetched. CI has Debian's packages
but no registry, so this builds the same footing with debootstrap: `ARG BASE` takes either, and the
etcd of the container tests comes out of the same image.

The result is named by a hash of this file, so a change here makes a new image and nothing else
does. The tarball is kept in the cache directory; an engine that lost its images imports it again
in seconds. It needs root (debootstrap makes device nodes) and a Debian mirror: `DEBIAN_MIRROR`, or
the public one. Only the standard library is used: CI runs this before there is a virtual
environment.

    python3 deploy/base_image.py            # prints the tag
    python3 deploy/base_image.py --tag      # prints it, and builds nothing
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

DEBIAN_RELEASE = "bookworm"
DEBIAN_MIRROR = "http://deb.debian.org/debian"
# `etcdctl`, which deploy/compose.yaml asks whether etcd is healthy, is in etcd-client.
PACKAGES = ("python3", "python3-venv", "etcd-server", "etcd-client", "ca-certificates", "iproute2")

# What a container never reads; half of the image's size.
UNUSED = (
    "var/cache/apt/archives",
    "var/cache/apt/pkgcache.bin",
    "var/cache/apt/srcpkgcache.bin",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
)

DEBOOTSTRAP_SECONDS_MAX = 900


class BaseImageError(RuntimeError):
    """The base image can't be made here. The message says what is missing or what failed."""


def base_tag() -> str:
    """The image's name: it changes when, and only when, this file changes."""
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return f"ringmq-base:{digest[:12]}"


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/ringmq`, or `~/.cache/ringmq`; made if it is missing."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(root) / "ringmq"
    path.mkdir(parents=True, exist_ok=True)
    return path


def has_image(tag: str) -> bool:
    """True if the engine has the image. `BaseImageError` if there is no docker client."""
    try:
        found = subprocess.run(
            ["docker", "image", "inspect", tag], capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise BaseImageError("there is no `docker` command on the path") from error
    return found.returncode == 0


def why_not_buildable() -> str | None:
    """The reason why `ensure_base_image` can't build one on this machine, or None if it can."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed"
    return None


def ensure_base_image(cache: Path | None = None) -> str:
    """The tag of the base image, which the engine has when this returns.

    From the engine itself, else from the tarball in `cache`, else from a Debian mirror (about a
    minute). Two callers at once build it once. `BaseImageError` says why there is none.
    """
    tag = base_tag()
    if has_image(tag):
        return tag
    cache = cache or cache_directory()
    tarball = cache / f"{tag.replace(':', '-')}.tar.gz"
    with _locked(cache / "base-image.lock"):
        if has_image(tag):
            return tag
        if not tarball.exists():
            if reason := why_not_buildable():
                raise BaseImageError(f"{tag} can't be built: {reason}")
            _build(tarball)
        # The layer itself carries no command; the environment is what python:slim sets, too.
        _run(
            ["docker", "import", "--change", "ENV LANG=C.UTF-8", str(tarball), tag],
            f"importing {tarball}",
        )
    return tag


def _build(tarball: Path) -> None:
    """Write the file system to `tarball`; it appears whole or not at all."""
    mirror = os.environ.get("DEBIAN_MIRROR", DEBIAN_MIRROR)
    with tempfile.TemporaryDirectory(dir=tarball.parent, prefix="debootstrap-") as folder:
        root = Path(folder) / "root"
        # In a mount namespace of its own: what debootstrap mounts (proc, sys) is gone with it, even
        # when it is killed, and removing the folder can't reach into the machine's /proc.
        _run(
            [
                *("unshare", "--mount", "--propagation", "private"),
                *("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
                *(DEBIAN_RELEASE, str(root), mirror),
            ],
            f"debootstrap of {DEBIAN_RELEASE} from {mirror}",
        )
        for name in UNUSED:
            _empty(root / name)
        unfinished = Path(folder) / "base.tar.gz"
        _run(
            [
                "tar",
                "-C",
                str(root),
                "--numeric-owner",
                "-I",
                "gzip -1",
                "-cf",
                str(unfinished),
                ".",
            ],
            "packing the base image",
        )
        unfinished.rename(tarball)


def _empty(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.unlink(missing_ok=True)


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEBOOTSTRAP_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise BaseImageError(f"{what} took over {DEBOOTSTRAP_SECONDS_MAX} s") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise BaseImageError(f"{what} failed with exit code {done.returncode}:\n{tail}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold `path` alone among all processes of this machine; released even by a crash."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    """The command line: print the tag, after building the image unless `--tag` is given."""
    parser = argparse.ArgumentParser(description="Build the base image of the container tests.")
    parser.add_argument("--tag", action="store_true", help="print the tag and build nothing")
    arguments = parser.parse_args()
    try:
        print(base_tag() if arguments.tag else ensure_base_image())
    except BaseImageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
