"""Work over all processors.

In processes of their own, not forked ones: these would inherit the gRPC of the tests before
and, when its objects are collected, wait for threads that are not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def over_all(
    work: Callable[[T], R], parts: Iterable[T], processes: int | None = None
) -> Iterator[R]:
    """`work` of each part, in their order. Both have to be found by name in another process."""
    context = get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=context) as pool:
        yield from pool.map(work, parts)
