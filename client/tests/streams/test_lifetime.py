"""The life of a publisher or a consumer: every pair of state and step, and its first failure."""

from __future__ import annotations

import pytest
from on_loops import Run

from ringmq.errors import ProtocolError, StoreFailedError
from ringmq.streams.lifetime import NEXT_LIFE, Life, Lifetime, Step


def nothing(error: object) -> None:
    """Nobody waits."""


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("life", Life)
def test_every_pair_of_life_and_step_is_allowed_or_a_bug(run: Run, life: Life, step: Step) -> None:
    async def test() -> None:
        lifetime = Lifetime("publisher", nothing)
        lifetime.life = life
        if (life, step) in NEXT_LIFE:
            lifetime._step(step)
            assert lifetime.life is NEXT_LIFE[life, step]
            assert lifetime.usable == (lifetime.life in (Life.OPENING, Life.OPEN))
            # Nothing that is over is ever usable again.
            assert not (life in (Life.FAILED, Life.CLOSING, Life.CLOSED) and lifetime.usable)
        else:
            with pytest.raises(AssertionError, match=f"{life.name} and met {step.name}"):
                lifetime._step(step)
            assert lifetime.life is life

    run(test)


def test_the_first_failure_stays_the_reason(run: Run) -> None:
    async def test() -> None:
        lifetime = Lifetime("consumer", nothing)
        assert str(lifetime.reason) == "the consumer is not open"
        assert not lifetime.close()  # it was never opened
        lifetime.life = Life.OPENING
        lifetime.opened()
        await lifetime.wait_opened(1)
        first = StoreFailedError("disk")
        lifetime.fail(first)
        lifetime.fail(ProtocolError("a consequence"))
        assert lifetime.reason is first
        assert lifetime.close()
        assert lifetime.reason is first
        assert not lifetime.close()

    run(test)


def test_a_failure_before_the_first_stream_is_told_to_open(run: Run) -> None:
    async def test() -> None:
        lifetime = Lifetime("publisher", nothing)
        lifetime.life = Life.OPENING
        lifetime.fail(StoreFailedError("disk"))
        with pytest.raises(StoreFailedError):
            await lifetime.wait_opened(1)

    run(test)
