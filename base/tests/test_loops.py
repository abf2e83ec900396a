"""The loops of the tests outlive what grpc.aio's thread still has for them."""

from __future__ import annotations

from importlib import import_module

import pytest
from loops import LOOPS, LoopFactory


@pytest.mark.parametrize("kind", LOOPS.values(), ids=LOOPS)
def test_a_closed_loop_takes_late_completions_of_grpc_and_nothing_else(kind: LoopFactory) -> None:
    loop = kind()
    loop.close()
    # What grpc.aio's completion queue calls on the loop of a call, whichever loop has taken it.
    cygrpc = import_module("grpc._cython.cygrpc")
    loop.call_soon_threadsafe(cygrpc._handle_callback_wrapper, None, 1)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)
