"""The command line: `ringmq`, which is `main` here and all else in `app`."""

from __future__ import annotations

import os
import sys

_CLOSED_MODES = (os.O_WRONLY, os.O_RDONLY, os.O_RDWR)


def open_missing_descriptors() -> None:
    """Puts something under 0, 1 and 2 where the caller has closed them (`<&-`, `>&-`).

    Else the next socket would be taken for one of these, and the event loop aborts. A read of
    what was closed, or a write to it, fails as it would have; only stderr may go nowhere.
    """
    for descriptor, mode in enumerate(_CLOSED_MODES):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest one that is free: those below are open by now.
            assert os.open(os.devnull, mode) == descriptor
    # Python has none of them where the descriptor was closed.
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def finish_output(code: int) -> int:
    """The exit code, 1 if what is still in stdout's buffer can't be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == 0:
            print(f"ringmq: {error}", file=sys.stderr)
        # Python flushes once more at its end, and would complain in its own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return code or 1
    return code


def main() -> None:
    """The entry of the `ringmq` script: runs this process's command line and exits."""
    # Read by gRPC when it is imported. What fails is said by us, in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    open_missing_descriptors()
    from ringmq_node.cli.app import invoke

    sys.exit(finish_output(invoke()))
