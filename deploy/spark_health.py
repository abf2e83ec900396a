#!/opt/ringmq/bin/python
"""Ask the Spark master or worker in this container whether it works; the exit code is the answer.

    spark_health.py master 8080
    spark_health.py worker 8081

It reads the JSON of the daemon's own page. A master works while it is the one that gives out work,
and a worker while it has a master: a worker that lost its own looks for it, and is of no use until
then. With 1, the reason is on stderr.
"""

import json
import sys
import urllib.request
from typing import Any

DEADLINE_S = 2.0


def why_not_working(kind: str, page: dict[str, Any]) -> str | None:
    """None if a daemon with this page works, else what the page says."""
    if kind == "master":
        return None if page["status"] == "ALIVE" else f"its status is {page['status']}"
    return None if page["masterurl"] else "it has no master"


def main(words: list[str]) -> int:
    """0 if the daemon in this container works, else 1 and the reason."""
    if len(words) != 2 or words[0] not in ("master", "worker"):
        sys.exit("usage: spark_health.py master|worker PORT")
    kind, port = words
    address = f"http://127.0.0.1:{port}/json/"
    try:
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            reason = why_not_working(kind, json.load(answer))
    except (OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        print(f"{address}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
