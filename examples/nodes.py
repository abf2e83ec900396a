"""The nodes that an example talks to: those of `make cluster`, or those on its command line."""

from __future__ import annotations

import sys

SEEDS = sys.argv[1:] or ["127.0.0.1:7801", "127.0.0.1:7802", "127.0.0.1:7803"]
