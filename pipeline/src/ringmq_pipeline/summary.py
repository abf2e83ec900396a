"""What a verb did, for scripts: one line of JSON, the last on stdout."""

from __future__ import annotations

import json
import sys


def print_summary(verb: str, **fields: object) -> None:
    """`fields` are numbers, texts, or dicts and lists of them; bytes and counts have their unit in
    the name."""
    print(json.dumps({"verb": verb} | fields), file=sys.stdout, flush=True)
