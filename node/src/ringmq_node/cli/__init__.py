"""The command line `ringmq`. `main` here prepares the process; `app` has the commands."""

from __future__ import annotations

import os
import sys

_CLOSED_MODES = (os.O_WRONLY, os.O_RDONLY, os.O_RDWR)


def open_missing_descriptors() -> None:
    """Opens the null device for descriptors 0, 1 and 2 that the caller has closed (`<&-`, `>&-`).

    Otherwise the next socket would get such a number, and the event loop aborts. The null
    device is opened in the wrong direction for stdin and stdout: reading from it, or writing
    to it, fails as it would on the closed descriptor. Writing to stderr succeeds, and the
    text is gone.
    """
    for descriptor, mode in enumerate(_CLOSED_MODES):
        try:
            os.fstat(descriptor)
        except OSError:
            # `open` takes the lowest free number, and all lower ones are open by now.
            assert os.open(os.devnull, mode) == descriptor
    # Python set these to None when it found the descriptor closed.
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def finish_output(code: int) -> int:
    """Flushes stdout. Returns `code`, or 1 if the rest of the output can't be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == 0:
            print(f"ringmq: {error}", file=sys.stderr)
        # Python flushes once more when it ends, and would print a traceback of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return code or 1
    return code


def main() -> None:
    """The entry of the `ringmq` script: runs this process's command line and exits."""
    # gRPC reads this when it is imported. It would log failures that we report in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    open_missing_descriptors()
    from ringmq_node.cli.app import invoke

    sys.exit(finish_output(invoke()))
