"""The loop that is worked by hand."""

from __future__ import annotations

import pytest
from node.tests.storage.engine.hand import by_hand


def test_check_that_fails_in_a_callback_fails_the_turn() -> None:
    def check() -> None:
        raise AssertionError("position 3 has another body")

    with by_hand() as hand:
        hand.loop.call_soon(check)
        with pytest.raises(AssertionError, match="position 3"):
            hand.turn()
        hand.turn()
