"""The command line: `ringmq`, which is `main` here and all else in `app`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The entry of the `ringmq` script: runs this process's command line and exits."""
    # Read by gRPC when it is imported. What fails is said by us, in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from ringmq_node.cli.app import invoke

    sys.exit(invoke())
