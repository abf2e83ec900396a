"""Objects that only the garbage collector would free: in a cycle that nobody refers to.

    @pytest.fixture(autouse=True)
    def collector_is_off() -> Iterator[None]:
        with collected_by_hand():
            yield

    def test_a_call_leaves_no_cycle() -> None:
        ...
        assert not in_cycles("ringmq_wire")

A node freezes the objects that have lived for a while (`ringmq_node.resources.garbage`), and no
collection looks at a frozen one again. So a cycle is found here at once, and in a node never.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from waiting import TooLateError, until


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """Switches the collector off, and hides from it the objects that other tests have left."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def in_cycles(*modules: str) -> Counter[str]:
    """The kinds of those whose class is in one of these modules or packages. They are kept until
    the next call, which finds them again."""
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kinds = [type(each) for each in gc.garbage]
    return Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith(modules))


def living(*kinds: type) -> Counter[str]:
    """How many objects of these classes there are since `collected_by_hand`, used or not."""
    return Counter(type(each).__qualname__ for each in gc.get_objects() if type(each) in kinds)


async def gone(*kinds: type, modules: tuple[str, ...], within_s: float) -> None:
    """Returns when no object of these classes is left. `modules`: where to look for cycles."""
    try:
        await until(lambda: not living(*kinds), within_s=within_s)
    except TooLateError as error:
        found = in_cycles(*modules, "_asyncio", "asyncio", "uvloop")
        raise AssertionError(f"there still are {living(*kinds)}, in cycles {found}") from error
